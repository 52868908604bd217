//! Stored API keys, and the secret of sessions.

use weir_core::{
    ApiKeyId,
    access::{Actor, Role, TenantScope},
};

use super::*;
use crate::{ApiKey, KeyUse};

fn key(number: u8) -> ApiKey {
    ApiKey {
        id: ApiKeyId::new(NOW + seconds(number.into()), number.into()),
        name: format!("key {number}"),
        role: Role::Operate,
        tenants: TenantScope::All,
        digest: [number; 32],
        created_at: NOW + seconds(number.into()),
        expires_at: None,
        created_by: Some(Actor::Setting),
        last_used_at: None,
    }
}

pub async fn api_keys_are_kept_until_they_are_deleted(mut subject: Subject) {
    assert_eq!(subject.store.api_keys().await.expect("read"), []);
    let bound = TenantScope::Only(["acme", "globex"].map(str::to_owned).into());
    let first =
        ApiKey { role: Role::Read, tenants: bound, expires_at: Some(NOW + seconds(60)), created_by: None, ..key(1) };
    // Two keys may have one name.
    let maker = Actor::Key { id: first.id, name: "an old name".to_owned() };
    let second = ApiKey { name: first.name.clone(), created_by: Some(maker), ..key(2) };
    for key in [&second, &first] {
        subject.store.create_api_key(key.clone(), creation()).await.expect("create");
    }
    subject.reopen().await;
    assert_eq!(subject.store.api_keys().await.expect("read"), [first.clone(), second.clone()]);

    assert!(subject.store.delete_api_key(first.id, activity()).await.expect("delete"));
    assert!(!subject.store.delete_api_key(first.id, activity()).await.expect("delete"));
    assert_eq!(subject.store.api_keys().await.expect("read"), [second]);
}

pub async fn the_last_use_of_an_api_key_is_kept_until_it_is_deleted(mut subject: Subject) {
    let (first, second) = (key(1), key(2));
    for key in [&first, &second] {
        subject.store.create_api_key(key.clone(), creation()).await.expect("create");
    }
    let used = |key: &ApiKey, at| KeyUse { id: key.id, at: NOW + seconds(at) };
    // Two processes record the uses that they have seen, in any order; a key may be deleted meanwhile.
    for uses in [vec![used(&second, 70), used(&first, 90)], vec![used(&key(3), 80), used(&first, 60)], Vec::new()] {
        subject.store.record_key_uses(uses).await.expect("record");
    }
    subject.reopen().await;
    let used_at = |keys: Vec<ApiKey>| keys.into_iter().map(|key| key.last_used_at).collect::<Vec<_>>();
    let at = |at| Some(NOW + seconds(at));
    assert_eq!(used_at(subject.store.api_keys().await.expect("read")), [at(90), at(70)]);

    assert!(subject.store.delete_api_key(first.id, activity()).await.expect("delete"));
    subject.store.record_key_uses(vec![used(&first, 99)]).await.expect("record");
    subject.store.create_api_key(first, creation()).await.expect("create");
    assert_eq!(used_at(subject.store.api_keys().await.expect("read")), [None, at(70)]);
}

pub async fn every_role_of_an_api_key_is_stored(subject: Subject) {
    let keys = [1, 2, 3, 4].map(|number| ApiKey { role: Role::ALL[usize::from(number) - 1], ..key(number) });
    for key in &keys {
        subject.store.create_api_key(key.clone(), creation()).await.expect("create");
    }
    assert_eq!(subject.store.api_keys().await.expect("read"), keys);
}

pub async fn the_secret_of_sessions_is_made_once_and_kept(mut subject: Subject) {
    let store = subject.store.clone();
    let proposals = (1..=8).map(|byte| {
        let store = store.clone();
        tokio::spawn(async move { store.session_secret([byte; 32]).await.expect("secret") })
    });
    let mut secrets = Vec::new();
    for proposal in proposals.collect::<Vec<_>>() {
        secrets.push(proposal.await.expect("no panic"));
    }
    let made = secrets[0];
    assert!((1..=8).contains(&made[0]) && secrets.iter().all(|secret| *secret == made), "{secrets:?}");
    drop(store);
    subject.reopen().await;
    assert_eq!(subject.store.session_secret([9; 32]).await.expect("secret"), made);
}
