-- Lists are of jobs that are gone. These indexes answer how many there are, by type and phase or by a part of a name, without a look at
-- the rows.
DROP INDEX ops_job_created;
DROP INDEX ops_job_type;
DROP INDEX ops_job_phase;
CREATE INDEX ops_job_words ON ops_job (cluster_id, created, uid, deleted, job_words, user_words);
CREATE INDEX ops_job_type ON ops_job (cluster_id, type, created, uid, deleted, phase);
CREATE INDEX ops_job_phase ON ops_job (cluster_id, phase, created, uid, deleted, type);
