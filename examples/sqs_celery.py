"""A Celery application whose broker is Bellringer.

bellringer keys pair                   # gives AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: export them
export BELLRINGER_ADDRESS=127.0.0.1:8080
celery --app examples.sqs_celery worker --pool solo &
python -c 'from examples.sqs_celery import greet; greet.delay("world")'
"""

import os

from celery import Celery

key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]

app = Celery(broker=f"sqs://{key}:{secret}@{os.environ['BELLRINGER_ADDRESS']}//")
app.conf.broker_transport_options = {
    "region": "eu-west-1",
    "is_secure": False,  # http, not https
    "visibility_timeout": 3600,  # how long a task may take before another worker gets it
    "wait_time_seconds": 20,
}
app.conf.task_default_queue = "tasks"


@app.task
def greet(name: str) -> None:
    """Say hello."""
    print(f"hello {name}", flush=True)
