"""A client that returns what it received: it computes nothing, so only sending there and back is measured."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)
