"""Run every benchmark in turn: `python -m bench`."""

from bench import accept_events, digest_emails, start

if __name__ == "__main__":
    for benchmark in (start, accept_events, digest_emails):
        benchmark.main()
