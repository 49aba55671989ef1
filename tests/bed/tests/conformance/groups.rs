//! One test per group of scripts.

use oarlock_bed::accounts::Account;
use oarlock_bed::conformance::{self, Sides};
use oarlock_bed::control_plane::{self, ControlPlane, Options};
use oarlock_sim::{Cluster, Options as SimOptions};
use tokio::sync::OnceCell;

/// One control plane for all groups: each script has a namespace of its own. It ends with this process.
async fn real() -> &'static ControlPlane {
    static REAL: OnceCell<ControlPlane> = OnceCell::const_new();
    REAL.get_or_try_init(|| control_plane::start(Options::default())).await.unwrap()
}

async fn agrees(group: &str) {
    let real = real().await.client(Account::Admin).await.unwrap();
    let cluster = Cluster::new(SimOptions::default());
    let sides = Sides { real, sim: kube::Client::new(cluster.service(), "default") };
    let report = conformance::run_group(group, &sides).await.unwrap();
    if let Some(folder) = std::env::var_os("OARLOCK_TRANSCRIPTS") {
        let path = std::path::Path::new(&folder).join(format!("{group}.txt"));
        std::fs::write(path, &report.transcript).unwrap();
    }
    let count = report.differences.len();
    assert!(count == 0, "{count} of {} scripts differ:\n\n{}", report.scripts, report.differences.join("\n"));
}

/// Makes the tests, and the list that the folder is compared with.
macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        const TESTED: &[&str] = &[$(stringify!($group)),*];
        $(
            #[tokio::test]
            async fn $group() {
                agrees(stringify!($group)).await;
            }
        )*
    };
}

groups![
    admission,
    apply,
    create,
    delete,
    discovery,
    evict,
    json_patch,
    kinds,
    list,
    merge_patch,
    names,
    schema,
    status,
    strategic_patch,
    table,
    update,
    watch,
];

#[test]
fn every_group_in_the_folder_has_a_test() {
    assert_eq!(conformance::groups().unwrap(), TESTED);
}

#[test]
fn there_are_enough_scripts() {
    let count = conformance::count_scripts().unwrap();
    assert!(count >= 120, "{count} scripts");
}
