//! The names of destinations, by which they are found and created once.

use super::*;

pub async fn a_name_is_taken_once_by_concurrent_creations(subject: Subject) {
    let named = |number: u128, tenant: &str| {
        let mut made = in_tenant(number, tenant);
        made.settings.name = "billing".to_owned();
        made
    };
    let calls = (1..=20u128).map(|number| {
        let (store, made) = (Arc::clone(&subject.store), named(number, "acme"));
        tokio::spawn(async move { store.create_named_destination(made, activity()).await.expect("create").is_new() })
    });
    let calls: Vec<_> = calls.collect();
    let mut created = 0;
    for call in calls {
        created += u32::from(call.await.expect("a call"));
    }
    assert_eq!(created, 1);
    assert_eq!(subject.store.named_destinations("acme", "billing").await.expect("read").len(), 1);
    // Another tenant has its own names, and a deleted destination none.
    let other = subject.store.create_named_destination(named(30, "globex"), activity()).await.expect("create");
    assert!(other.is_new());
    subject.delete(30).await;
    assert!(subject.store.create_named_destination(named(31, "globex"), activity()).await.expect("create").is_new());
}

pub async fn destinations_are_found_by_their_names(subject: Subject) {
    for (number, name) in [(1, "a"), (2, "b"), (3, "b"), (4, "b"), (5, "gone")] {
        let mut made = destination(number);
        made.settings.name = name.to_owned();
        subject.create(made).await;
    }
    subject.delete(5).await;
    let found = async |tenant: &str, name: &str| {
        let found = subject.store.named_destinations(tenant, name).await.expect("read");
        found.iter().map(|destination| destination.id).collect::<Vec<_>>()
    };
    let tenant = destination(1).settings.tenant;
    assert_eq!(found(&tenant, "a").await, [destination_id(1)]);
    assert_eq!(found(&tenant, "b").await.len(), 2, "two are enough to know that the name is not unique");
    for (tenant, name) in [(tenant.as_str(), "gone"), (&tenant, "A"), (&tenant, ""), ("nobody", "a")] {
        assert!(found(tenant, name).await.is_empty(), "{tenant} {name}");
    }
    let renamed = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    subject.patch(&renamed, NOW + seconds(1), |settings| settings.name = "c".to_owned()).await.expect("applied");
    assert_eq!((found(&tenant, "a").await.len(), found(&tenant, "c").await.len()), (0, 1));
}
