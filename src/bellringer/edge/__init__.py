"""The edge: HTTP in and out. API keys and environments, the app factory, errors as problem details, raw routes.

Subsystems hand over their routes; the edge knows none of them. An API key opens one environment, which is an
organisation and an environment name ("acme", "production"); everything stored belongs to one environment, and a key
never sees another's.

Life of a key: created -> in use -> revoked. Only the SHA-256 of a key is stored: keys are long random strings, so a
slow hash would add nothing but load.
"""
