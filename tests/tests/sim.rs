//! Every scenario on the in-memory API, under paused time.

use oarlock_tests::rig::Rig;
use oarlock_tests::scenarios::replacing;

/// A test for each scenario, under its own name.
macro_rules! on_sim {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(start_paused = true)]
        async fn $scenario() {
            let mut rig = Rig::sim(1).await.expect("the rig stands");
            if let Err(error) = $module::$scenario(&mut rig).await {
                panic!("{error:?}");
            }
            rig.stop_host().await.expect("the host stops");
        }
    )*};
}

on_sim! {
    replacing::collaset_pods_are_replaced_one_partition_after_the_other,
    replacing::deployment_pods_are_evicted_and_each_gets_a_new_pod_of_its_own,
    replacing::a_stateful_sets_pod_comes_back_under_its_name,
}
