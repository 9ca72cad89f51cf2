"""Channels: how a notification reaches a person. Email over SMTP, and a capture server that stands in for one.

States of a delivery (one recipient of one email): pending -> sent (the SMTP server took it) or failed (it refused it
for good, or the time to try ran out). A temporary refusal leaves it pending; the email's message comes back later and
is sent to those who still wait. The email keeps its Message-ID and its bytes over all attempts.
"""
