"""sklearn-legacy: a Flower client of the legacy interface that handles its messages itself."""

import time
import warnings

from flwr.client import Client, ClientApp
from flwr.common import (
    Code,
    Context,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from sklearn.metrics import log_loss

from sklearn_legacy.task import create_model, get_model_params, load_data, set_model_params, slow_seconds


class FlowerClient(Client):
    """A client with its own digits."""

    def __init__(self, model, data, slow):
        self.model, self.slow = model, slow
        self.x_train, self.y_train, self.x_test, self.y_test = data

    def fit(self, ins: FitIns) -> FitRes:
        set_model_params(self.model, parameters_to_ndarrays(ins.parameters))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few steps do not converge
            self.model.fit(self.x_train, self.y_train)
        time.sleep(self.slow)
        return FitRes(
            status=Status(code=Code.OK, message="Success"),
            parameters=ndarrays_to_parameters(get_model_params(self.model)),
            num_examples=len(self.x_train),
            metrics={"train_accuracy": float(self.model.score(self.x_train, self.y_train))},
        )

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        set_model_params(self.model, parameters_to_ndarrays(ins.parameters))
        loss = log_loss(self.y_test, self.model.predict_proba(self.x_test), labels=self.model.classes_)
        return EvaluateRes(
            status=Status(code=Code.OK, message="Success"),
            loss=float(loss),
            num_examples=len(self.x_test),
            metrics={"accuracy": float(self.model.score(self.x_test, self.y_test))},
        )


def client_fn(context: Context):
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(create_model(context.run_config["local-epochs"]), data, slow_seconds(context))


app = ClientApp(client_fn)
