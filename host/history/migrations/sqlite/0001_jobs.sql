-- What a list says of a job. Times are milliseconds, and the largest number while there is none, so that it sorts as the latest.
CREATE TABLE ops_job (
    uid TEXT PRIMARY KEY NOT NULL,
    cluster_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    type TEXT NOT NULL,
    phase TEXT NOT NULL,
    created BIGINT NOT NULL,
    started BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    timeout BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    -- In lower case: id and name, and the name of the user.
    job_words TEXT NOT NULL,
    user_words TEXT NOT NULL
);
CREATE INDEX ops_job_created ON ops_job (cluster_id, created, uid);
CREATE INDEX ops_job_type ON ops_job (cluster_id, type, created, uid);
CREATE INDEX ops_job_phase ON ops_job (cluster_id, phase, created, uid);
CREATE INDEX ops_job_workspace ON ops_job (cluster_id, workspace_id, created, uid);
CREATE INDEX ops_job_user ON ops_job (cluster_id, user_id, created, uid);
CREATE INDEX ops_job_id ON ops_job (cluster_id, job_id, created, uid);
CREATE INDEX ops_job_ended ON ops_job (ended);

-- The job itself, as JSON. Apart, so that a search reads little.
CREATE TABLE ops_job_text (
    uid TEXT PRIMARY KEY NOT NULL REFERENCES ops_job (uid) ON DELETE CASCADE,
    spec TEXT NOT NULL,
    status TEXT NOT NULL,
    -- The digest of the request that it was made by, under a key.
    request TEXT NOT NULL
);
