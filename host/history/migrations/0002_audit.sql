-- Who asked for what, refused requests too. A request that is under way has the status 0.
CREATE TABLE audit (
    id TEXT PRIMARY KEY NOT NULL,
    cluster_id TEXT NOT NULL,
    time BIGINT NOT NULL,
    request_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    address TEXT NOT NULL,
    verb TEXT NOT NULL,
    job_id TEXT NOT NULL,
    type TEXT NOT NULL,
    status BIGINT NOT NULL,
    code TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX audit_time ON audit (time);
