//! The Redis queue passes the conformance suite, on one server and on a Cluster.

mod single {
    use weir_queue::conformance::Subject;

    use crate::support::{self, subject_of};

    async fn subject() -> Subject {
        subject_of(support::open(support::shared_config()).await)
    }

    weir_queue::queue_conformance!(subject);
}

mod cluster {
    use weir_queue::conformance::Subject;

    use crate::support::{self, subject_of};

    async fn subject() -> Subject {
        subject_of(support::open(support::cluster_config()).await)
    }

    weir_queue::queue_conformance!(subject);
}
