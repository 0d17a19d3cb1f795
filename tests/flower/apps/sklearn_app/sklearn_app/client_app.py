"""sklearn-app: a Flower client of the message interface."""

import time
import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearn_app.task import create_model, get_model_params, load_data, set_model_params, slow_seconds

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = create_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x_train, y_train, _, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not converge
        model.fit(x_train, y_train)
    time.sleep(slow_seconds(context))
    metrics = {"num-examples": len(x_train), "train_accuracy": float(model.score(x_train, y_train))}
    content = {"arrays": ArrayRecord(get_model_params(model)), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = create_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    _, _, x_test, y_test = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = {
        "num-examples": len(x_test),
        "test_logloss": float(log_loss(y_test, model.predict_proba(x_test), labels=model.classes_)),
        "accuracy": float(model.score(x_test, y_test)),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
