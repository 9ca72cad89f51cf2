-- How many executors the orchestrator asked for, round by round, and why.
CREATE TABLE bellringer.scaling_decisions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    driver text NOT NULL,
    runs_due bigint NOT NULL,
    slots double precision NOT NULL,
    waiting bigint NOT NULL,
    executors_seen integer NOT NULL,
    current integer,
    needed integer NOT NULL,
    desired integer NOT NULL,
    reason text NOT NULL,
    problem text
);
CREATE INDEX scaling_decisions_at ON bellringer.scaling_decisions (at);
COMMENT ON COLUMN bellringer.scaling_decisions.runs_due IS 'Tasks and occurrences due in the look-ahead';
COMMENT ON COLUMN bellringer.scaling_decisions.slots IS 'Needed by when executors ordered now or next could be ready';
COMMENT ON COLUMN bellringer.scaling_decisions.waiting IS 'Runs that were due and had not started';
COMMENT ON COLUMN bellringer.scaling_decisions.executors_seen IS 'Executors that showed themselves lately';
COMMENT ON COLUMN bellringer.scaling_decisions.current IS 'Executors ordered before; null when the driver could not say';
COMMENT ON COLUMN bellringer.scaling_decisions.problem IS 'Why the order failed; the next round tries again';
