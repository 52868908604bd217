//! Stored API keys, and the secret of sessions.

use weir_core::{
    ApiKeyId,
    access::{Role, TenantScope},
};

use super::*;
use crate::ApiKey;

fn key(number: u8) -> ApiKey {
    ApiKey {
        id: ApiKeyId::new(NOW + seconds(number.into()), number.into()),
        name: format!("key {number}"),
        role: Role::Operate,
        tenants: TenantScope::All,
        digest: [number; 32],
        created_at: NOW + seconds(number.into()),
        expires_at: None,
    }
}

pub async fn api_keys_are_kept_until_they_are_deleted(mut subject: Subject) {
    assert_eq!(subject.store.api_keys().await.expect("read"), []);
    let bound = TenantScope::Only(["acme", "globex"].map(str::to_owned).into());
    let first = ApiKey { role: Role::Read, tenants: bound, expires_at: Some(NOW + seconds(60)), ..key(1) };
    // Two keys may have one name.
    let second = ApiKey { name: first.name.clone(), ..key(2) };
    for key in [&second, &first] {
        subject.store.create_api_key(key.clone(), creation()).await.expect("create");
    }
    subject.reopen().await;
    assert_eq!(subject.store.api_keys().await.expect("read"), [first.clone(), second.clone()]);

    assert!(subject.store.delete_api_key(first.id, activity()).await.expect("delete"));
    assert!(!subject.store.delete_api_key(first.id, activity()).await.expect("delete"));
    assert_eq!(subject.store.api_keys().await.expect("read"), [second]);
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
