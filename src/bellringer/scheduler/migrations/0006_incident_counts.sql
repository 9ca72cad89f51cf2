-- Counts incidents by their kind, and late starts by their cause: in one place, whichever transition reports them.
CREATE FUNCTION bellringer.count_incidents() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT environment_id,
        CASE kind WHEN 'missed' THEN 'tasks.missed.' || COALESCE(cause, 'unknown') ELSE 'tasks.incidents.' || kind END,
        sum(fire_times)
    FROM reported
    GROUP BY 1, 2;
    RETURN NULL;
END $$;

CREATE TRIGGER count_incidents AFTER INSERT ON bellringer.incidents
    REFERENCING NEW TABLE AS reported
    FOR EACH STATEMENT EXECUTE FUNCTION bellringer.count_incidents();
