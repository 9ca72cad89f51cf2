"""The edge: HTTP in and out. API keys and environments, the app factory, errors as problem details, raw routes.

Subsystems hand over their routes; the edge knows none of them. An API key opens one environment, which is an
organisation and an environment name ("acme", "production"); everything stored belongs to one environment, and a key
never sees another's. Its scopes say what it may do there, and a rate limit how often.

Life of a key: created -> in use -> revoked. Only the SHA-256 of a key is stored: keys are long random strings, so a
slow hash would add nothing but load. The secret that requests are signed with is stored as it is, as its checking
demands; it is an HMAC under the key, so the key cannot be found from it.
"""
