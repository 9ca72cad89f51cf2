"""A queue through boto3: send, receive, delete; a dead letter queue for what fails three times.

bellringer keys pair                   # gives AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: export them
export AWS_ENDPOINT_URL_SQS=http://127.0.0.1:8080 AWS_DEFAULT_REGION=eu-west-1
python examples/sqs_boto3.py
"""

import json

import boto3

sqs = boto3.client("sqs")

failed = sqs.create_queue(QueueName="orders-failed")["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=failed, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
orders = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "60"})[
    "QueueUrl"
]

sqs.send_message(
    QueueUrl=orders,
    MessageBody=json.dumps({"order": 42}),
    MessageAttributes={"customer": {"DataType": "String", "StringValue": "acme"}},
)

answer = sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10, WaitTimeSeconds=20, MessageAttributeNames=["All"])
for message in answer.get("Messages", []):
    customer = message["MessageAttributes"]["customer"]["StringValue"]
    print(f"order {json.loads(message['Body'])['order']} of {customer}")
    sqs.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])
