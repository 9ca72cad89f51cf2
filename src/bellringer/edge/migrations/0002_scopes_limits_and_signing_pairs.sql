-- A key made before, or by an older process beside this one, is an admin key without a limit and without a pair.
ALTER TABLE bellringer.api_keys
    ADD COLUMN scopes text[] NOT NULL DEFAULT '{admin}',
    ADD COLUMN requests_per_second double precision,
    ADD COLUMN burst integer,
    ADD COLUMN access_key_id text UNIQUE,
    ADD COLUMN signing_secret text,
    ADD CONSTRAINT api_keys_scopes_known
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['publish', 'consume', 'admin']),
    ADD CONSTRAINT api_keys_limit_whole
        CHECK (num_nulls(requests_per_second, burst) IN (0, 2) AND requests_per_second > 0 AND burst > 0),
    ADD CONSTRAINT api_keys_pair_whole
        CHECK (num_nulls(access_key_id, signing_secret) IN (0, 2));
COMMENT ON COLUMN bellringer.api_keys.signing_secret IS
    'The secret access key: an HMAC under the key, from which the key cannot be found';
