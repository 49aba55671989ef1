-- Jobs of one second have a place among each other, and a row says why its job is gone: lists have those that expired, and those that
-- somebody deleted where they are asked for. Of rows that were there before, the end and the time to live say it.
ALTER TABLE ops_job ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE ops_job ADD COLUMN gone_by TEXT NOT NULL DEFAULT '';
UPDATE ops_job SET gone_by = COALESCE(
    (SELECT 'expired' FROM ops_job_text AS own WHERE own.uid = ops_job.uid
        AND CAST(COALESCE(json_extract(own.spec, '$.ttlSecondsAfterFinished'), 3600) AS INTEGER)
            BETWEEN 0 AND (ops_job.deleted - ops_job.ended) / 1000), 'deleted')
    WHERE deleted <> 9223372036854775807;
DROP INDEX ops_job_words;
DROP INDEX ops_job_type;
DROP INDEX ops_job_phase;
DROP INDEX ops_job_workspace;
DROP INDEX ops_job_user;
CREATE INDEX ops_job_words ON ops_job (cluster_id, created, seq, uid, deleted, gone_by, job_words, user_words);
CREATE INDEX ops_job_type ON ops_job (cluster_id, type, created, seq, uid, deleted, gone_by, phase);
CREATE INDEX ops_job_phase ON ops_job (cluster_id, phase, created, seq, uid, deleted, gone_by, type);
CREATE INDEX ops_job_workspace ON ops_job (cluster_id, workspace_id, created, seq, uid);
CREATE INDEX ops_job_user ON ops_job (cluster_id, user_id, created, seq, uid);
