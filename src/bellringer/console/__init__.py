"""The console: what Bellringer does, seen in a browser.

Pages are rendered on the server and say everything without JavaScript; a small script keeps them current. Whoever
holds an API key signs in with it and sees that key's environment.

    GET page -> session (the key in a cookie) -> services -> template -> HTML
    GET /console/live -> a feed per environment (one poll a second for all who look) -> changed fragments as SSE
    POST form -> session -> one operation of a service -> back to the page with GET

Invariants:
- The console reads and acts through the services alone, as the API does; it has no SQL of its own.
- Every form comes from a page of ours: a guard of all routes refuses those of other sites.
- A look at messages claims none, and the messages of the pipeline's queues, which belong to all, are not shown.
- A fragment is one template, whether it is part of a page or comes later through the stream.
- Nothing is polled while nobody looks: a feed starts with its first viewer and ends with its last. Tasks are read for
  who looks at tasks, and for each fragment as often as it is worth.
- A page runs and loads nothing that is not ours: its Content-Security-Policy allows no inline script or style. The
  HTML of captured mail is shown in a sandbox under a policy of its own, which allows no scripts and no remote loads.
- The key never stands in a page, and a page that needs it is never cached.

Life of a viewer: connected -> live <-> the database is away -> gone, signed out, or ended by the shutdown.
"""
