from abs_sgd.workloads.task import Task
def get(name, **k):
    from abs_sgd.workloads import digits
    return {"digits-mlp": digits.digits_mlp, "digits-cnn": digits.digits_cnn}[name](**k)
