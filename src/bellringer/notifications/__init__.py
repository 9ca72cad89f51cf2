"""Notifications: what happened, to whom it matters, and the email that tells them.

    POST /v1/events -> accepted (a row, and a message on the queue notifications.accepted, in one commit)
                    -> in digest (the open digest of its environment and window; opened if there is none)
                    -> digest closed (a message on digests.closed) -> grouped into emails (messages on emails.outbound)
                    -> sent or failed, per recipient

Invariants:
- What was answered with 202 is stored, and reaches each of its recipients or is shown as failed to.
- A notification is in one digest; within it, recipients with the same set of events share an email, and no other
  email holds that pair of recipient and event.
- Each arrow but the last is a transaction that also completes the message which asked for it: it happens once.
  The last crosses to an SMTP server. Where the answer was not recorded, the same bytes with the same Message-ID may
  go out again.

Consumers are idempotent by notification id. Rooms: `digests` gathers, `channels` carries.
"""
