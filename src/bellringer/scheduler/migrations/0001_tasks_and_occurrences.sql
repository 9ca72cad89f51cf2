-- A task is one row for its whole life; what became of each of its fire times is a row of `occurrences`.
CREATE TABLE bellringer.tasks (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES bellringer.environments,
    name text NOT NULL,
    queue integer NOT NULL,
    once_at timestamptz,
    cron text,
    time_zone text NOT NULL DEFAULT 'UTC',
    every_seconds double precision,
    starting_at timestamptz,
    call jsonb NOT NULL,
    payload text NOT NULL DEFAULT 'null',
    misfire text NOT NULL DEFAULT 'latest' CHECK (misfire IN ('skip', 'latest', 'all', 'window')),
    misfire_limit integer NOT NULL DEFAULT 10,
    misfire_window_seconds double precision NOT NULL DEFAULT 3600,
    overlap text NOT NULL CHECK (overlap IN ('allow', 'skip', 'queue', 'replace')),
    time_limit_seconds double precision NOT NULL DEFAULT 3600,
    max_retries integer NOT NULL DEFAULT 0,
    retry_first_seconds double precision NOT NULL DEFAULT 10,
    retry_cap_seconds double precision NOT NULL DEFAULT 3600,
    rerun_after_crash boolean NOT NULL DEFAULT false,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'cancelled', 'refused')),
    problem text,
    is_planned boolean NOT NULL DEFAULT true,
    next_fire_at timestamptz,
    running_fire_at timestamptz,
    waiting_fire_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    modified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (environment_id, name),
    CHECK (num_nonnulls(once_at, cron, every_seconds) = 1),
    CHECK (state = 'active' OR next_fire_at IS NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX tasks_due ON bellringer.tasks (next_fire_at) WHERE next_fire_at IS NOT NULL;
CREATE INDEX tasks_once_at ON bellringer.tasks (once_at) WHERE once_at IS NOT NULL;
COMMENT ON COLUMN bellringer.tasks.queue IS 'Number of the queue of the broker that its occurrences are handed to';
COMMENT ON COLUMN bellringer.tasks.payload IS 'JSON, byte for byte as it was given';
COMMENT ON COLUMN bellringer.tasks.is_planned IS
    'False: next_fire_at is no fire time but the moment from which a picker looks for the first one';
COMMENT ON COLUMN bellringer.tasks.next_fire_at IS
    'The first fire time without an occurrence; null when none is to come';
COMMENT ON COLUMN bellringer.tasks.running_fire_at IS 'Where occurrences may not overlap: the one that runs';
COMMENT ON COLUMN bellringer.tasks.waiting_fire_at IS 'Where occurrences may not overlap: the one that is next';
COMMENT ON COLUMN bellringer.tasks.problem IS 'Why it was refused, when what was scheduled in SQL is no valid task';

-- Stages: 0 picked, 1 dispatched to the broker, 2 started or over, 3 waits for its predecessor to end.
-- Everything that says how an occurrence ended stands outside of every index: to end one is to change it in place.
CREATE TABLE bellringer.occurrences (
    task bigint NOT NULL,
    fire_at timestamptz NOT NULL,
    stage smallint NOT NULL,
    due_at timestamptz NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    picked_at timestamptz NOT NULL,
    dispatched_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    outcome text CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'crashed', 'cancelled', 'skipped')),
    detail text,
    missed_cause text,
    executor uuid,
    is_manual boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task, fire_at),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX occurrences_open ON bellringer.occurrences (stage, due_at) WHERE stage < 2;
-- Not by ranges of blocks: once what is new stands where what is old was removed, every range holds both. And of an
-- expression, or the planner takes it to look for one occurrence, among all that have the same fire time.
CREATE INDEX occurrences_fire_at ON bellringer.occurrences ((fire_at AT TIME ZONE 'UTC'));
COMMENT ON COLUMN bellringer.occurrences.due_at IS 'When it may start: the fire time, or later for a retry';
COMMENT ON COLUMN bellringer.occurrences.detail IS 'Why it failed or was skipped';
COMMENT ON COLUMN bellringer.occurrences.is_manual IS 'Asked for by hand; its fire time is the moment of that';

-- Attempts before the current one, of the few occurrences that have any.
CREATE TABLE bellringer.past_attempts (
    task bigint NOT NULL,
    fire_at timestamptz NOT NULL,
    attempt integer NOT NULL,
    due_at timestamptz NOT NULL,
    dispatched_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    outcome text NOT NULL,
    detail text,
    executor uuid,
    PRIMARY KEY (task, fire_at, attempt)
);

-- What did not go as planned: a start later than promised, a failure, fire times that were skipped.
CREATE TABLE bellringer.incidents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_id uuid NOT NULL,
    task bigint NOT NULL,
    task_name text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('missed', 'failed', 'timed_out', 'crashed', 'skipped', 'refused')),
    fire_at timestamptz,
    last_fire_at timestamptz,
    fire_times integer NOT NULL DEFAULT 1,
    attempt integer,
    cause text,
    detail text,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at timestamptz,
    is_announced boolean NOT NULL DEFAULT false
);
CREATE INDEX incidents_unannounced ON bellringer.incidents (id) WHERE NOT is_announced;
CREATE INDEX incidents_environment ON bellringer.incidents (environment_id, id);
CREATE INDEX incidents_unresolved ON bellringer.incidents (environment_id, id)
    WHERE resolved_at IS NULL AND kind IN ('failed', 'timed_out', 'crashed');
CREATE INDEX incidents_task ON bellringer.incidents (task, fire_at);
COMMENT ON COLUMN bellringer.incidents.last_fire_at IS 'Of fire times skipped together: the last, from fire_at on';
COMMENT ON COLUMN bellringer.incidents.resolved_at IS 'When a failed occurrence was tried again';

-- How long runs took lately, by what was run: for the forecast.
CREATE TABLE bellringer.run_durations (
    subject text PRIMARY KEY,
    seconds real[] NOT NULL,
    modified_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX run_durations_modified_at ON bellringer.run_durations (modified_at);
COMMENT ON COLUMN bellringer.run_durations.subject IS 'A task by its number, or what one-time tasks call in common';
COMMENT ON COLUMN bellringer.run_durations.seconds IS 'The newest runs, newest last, 200 at most';

CREATE TABLE bellringer.executors (
    id uuid PRIMARY KEY,
    host text NOT NULL,
    process integer NOT NULL,
    concurrency integer NOT NULL,
    environment_id uuid,
    running integer NOT NULL DEFAULT 0,
    held integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN bellringer.executors.environment_id IS 'Whose functions it has; null when it has none';

-- What executors can run, as the newest of them said.
CREATE TABLE bellringer.functions (
    environment_id uuid NOT NULL,
    name text NOT NULL,
    parameters jsonb NOT NULL,
    description text NOT NULL DEFAULT '',
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (environment_id, name)
);

CREATE TABLE bellringer.scheduler_samples (
    environment_id uuid NOT NULL,
    at timestamptz NOT NULL,
    picked bigint NOT NULL,
    started bigint NOT NULL,
    ended bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    missed bigint NOT NULL,
    wait_milliseconds bigint NOT NULL,
    run_milliseconds bigint NOT NULL,
    waits bigint[] NOT NULL,
    picker_lag_seconds double precision NOT NULL,
    queue_depth bigint NOT NULL,
    PRIMARY KEY (environment_id, at)
);
COMMENT ON TABLE bellringer.scheduler_samples IS 'How the scheduler stood, a row whenever something changed; totals';
COMMENT ON COLUMN bellringer.scheduler_samples.waits IS 'Starts by how late they were: up to 0.1, 0.5, 1, 5, 10, 30 s, later';
