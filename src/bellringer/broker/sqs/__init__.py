"""Amazon SQS's wire protocol over the broker's queues: any SQS client works with Bellringer's queues, unchanged.

The way of a request: `routes` reads it and finds whose it is (`signature`); one of two protocols
(`json_protocol`, `query_protocol`) decodes it into a record of `requests`; `actions` knows which handler takes it and
which scope it needs; `queue_actions`, `message_actions` and `move_actions` do it over `Broker`. What goes wrong is a
`SqsError` with the service's own code, in the shape of the protocol that asked.

Invariants:
- An entry of a batch that fails leaves the others unharmed; a batch that is refused as a whole stores nothing.
- A client sees the queues of its key's environment and no other; the account number in URLs and ARNs is made of it.
- What is not supported gets `UnsupportedOperation`: it is neither ignored nor answered as done.
"""
