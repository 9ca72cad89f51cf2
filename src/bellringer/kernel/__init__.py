"""What every subsystem stands on: database, migrations, batching, clock, ids, backoff, leases, services, errors.

Nothing here names a product noun, and everything here serves two subsystems or more. The kernel imports nothing
from the rest of Bellringer.
"""
