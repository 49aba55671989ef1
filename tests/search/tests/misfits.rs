//! Bad inputs beside a good job, one after the other: which neighbours were disturbed, and what the owner of each input was told.

use anyhow::{Context as _, ensure};
use oarlock_search::misfits::{Begin, Harm, Misfit, Told, files, grants, jobs, judge, misdeeds, pods, statuses};

/// The fewest bad inputs that prove what is promised.
const LEAST: usize = 60;

async fn nobody_notices(what: &str, table: Vec<Misfit>) -> anyhow::Result<()> {
    let outcome = judge(&table).await.with_context(|| what.to_owned())?;
    println!("{what}: {outcome}");
    ensure!(outcome.found.is_empty() && outcome.tried == table.len(), "{what}: {outcome}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_plugin_that_misbehaves() -> anyhow::Result<()> {
    nobody_notices("misdeeds", misdeeds::table()).await
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_file_that_is_no_plugin() -> anyhow::Result<()> {
    nobody_notices("files", files::table()).await
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_grant_that_is_wrong() -> anyhow::Result<()> {
    nobody_notices("grants", grants::table()).await
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_job_that_breaks_the_rules() -> anyhow::Result<()> {
    nobody_notices("jobs", jobs::table()).await
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_pod_that_says_what_no_pod_should() -> anyhow::Result<()> {
    nobody_notices("pods", pods::table()).await
}

#[tokio::test(start_paused = true)]
async fn nobody_notices_a_status_that_somebody_else_wrote() -> anyhow::Result<()> {
    nobody_notices("statuses", statuses::table()).await
}

#[test]
fn there_are_enough_misfits_and_none_twice() {
    let tables = [misdeeds::table(), files::table(), grants::table(), jobs::table(), pods::table(), statuses::table()];
    let names: Vec<String> = tables.into_iter().flatten().map(|misfit| misfit.name).collect();
    println!("{} misfits", names.len());
    assert!(names.len() >= LEAST, "{} misfits", names.len());
    let twice: Vec<_> =
        names.iter().enumerate().filter(|(at, name)| names.iter().take(*at).any(|other| other == *name)).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test(start_paused = true)]
async fn what_disturbs_a_neighbour_or_says_nothing_is_found() {
    let harm = |name: &str, harm: Harm| Misfit::new(name, Begin::Harm(harm), Told::Nothing);
    let silent = || Misfit::new("silent", Begin::Harm(Harm::Silence), Told::Event("InvalidSpec"));
    let table = [harm("late", Harm::Delay), harm("quiet", Harm::Silence), harm("rude", Harm::Touch), silent()];
    let found = judge(&table).await.expect("the shared stands").found;
    let said: Vec<String> = found.iter().map(ToString::to_string).collect();
    let [late, rude, silent] = said.as_slice() else { panic!("{said:?}") };
    assert!(late.starts_with("late: the good job took "), "{late}");
    assert!(rude.starts_with("rude: the pod bystander was touched"), "{rude}");
    assert_eq!(silent, "silent: its owner was not told: no event InvalidSpec");
}
