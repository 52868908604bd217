//! Limit groups: their own edits, and destinations that join and leave them.

use weir_core::{
    LimitGroup, LimitGroupId,
    limit_group::{Home, MAX_MEMBERS},
    temporary::{Hold, Temporary},
};

use super::{stops::per_second_until, *};
use crate::{GroupChange, GroupDeletion, MAX_LEFT_HOMES, Membership};

pub(super) fn group(number: u128) -> LimitGroup {
    LimitGroup {
        keys_of: None,
        id: LimitGroupId::new(NOW, number),
        tenant: None,
        name: format!("group {number}"),
        rate_limits: per_second(10),
        max_in_flight: Some(7),
        temporary: Default::default(),
        created_at: NOW,
        updated_at: NOW + seconds(1),
    }
}

fn per_second(limit: u32) -> RateLimits {
    RateLimits::new(vec![RateLimit::new(limit, Period::SECOND).expect("a limit")]).expect("limits")
}

fn member(number: u128, of: u128) -> Destination {
    let mut made = destination(number);
    (made.settings.limit_group, made.settings.weight) = (Some(group(of).id), 5);
    made
}

impl Subject {
    async fn set_group(&self, expected: Option<Timestamp>, group: LimitGroup) -> GroupChange {
        self.store.set_limit_group(expected, group, activity().into()).await.expect("set")
    }

    pub(super) async fn make_groups(&self, numbers: impl IntoIterator<Item = u128>) {
        for number in numbers {
            assert!(matches!(self.set_group(None, group(number)).await, GroupChange::Made(_)));
        }
    }

    async fn members_of(&self, number: u128, since: u64) -> Vec<Membership> {
        let mut members = self.store.memberships(group(number).id, NOW + seconds(since)).await.expect("read");
        members.sort_by_key(|one| (one.joined_at, one.destination_id));
        members
    }

    /// Moves a destination at this second.
    async fn move_to(&self, number: u128, to: Option<u128>, at: u64) -> Option<Arc<Destination>> {
        let current = self.store.destination(destination_id(number)).await.expect("read").expect("a destination");
        let group = to.map(|to| group(to).id);
        self.patch(&current, NOW + seconds(at), |settings| settings.limit_group = group).await
    }
}

pub async fn a_limit_group_is_changed_only_over_the_expected_version(mut subject: Subject) {
    let first = group(1);
    assert_eq!(subject.set_group(None, first.clone()).await, GroupChange::Made(Arc::new(first.clone())));
    assert_eq!(subject.set_group(None, first.clone()).await, GroupChange::Outdated, "it exists");
    let edited = LimitGroup {
        name: "stripe".to_owned(),
        rate_limits: per_second(20),
        max_in_flight: None,
        updated_at: NOW + seconds(2),
        ..first.clone()
    };
    assert_eq!(subject.set_group(Some(NOW), edited.clone()).await, GroupChange::Outdated, "another version");
    let change = subject.set_group(Some(first.updated_at), edited.clone()).await;
    assert_eq!(change, GroupChange::Made(Arc::new(edited.clone())));
    subject.reopen().await;
    let found = subject.store.limit_groups(&[group(2).id, edited.id]).await.expect("read");
    assert_eq!(found, [None, Some(Arc::new(edited.clone()))]);
    // Renamed without other limits: no change of limits.
    let renamed = LimitGroup { name: "acme".to_owned(), updated_at: NOW + seconds(3), ..edited.clone() };
    assert!(matches!(subject.set_group(Some(edited.updated_at), renamed.clone()).await, GroupChange::Made(_)));
    let changes = subject.store.limit_group_changes(edited.id).await.expect("read");
    let changes: Vec<_> = changes.into_iter().map(|change| (change.at, change.limits)).collect();
    assert_eq!(changes, [(first.updated_at, per_second(10)), (edited.updated_at, per_second(20))]);

    let delete = async |version| subject.store.delete_limit_group(first.id, version, activity()).await.expect("delete");
    assert_eq!(delete(first.updated_at).await, GroupDeletion::Outdated);
    assert_eq!(delete(renamed.updated_at).await, GroupDeletion::Deleted);
    assert_eq!(delete(renamed.updated_at).await, GroupDeletion::Outdated, "it is gone");
}

/// The end has its row from the begin on, because nobody may be there to write it. An edit moves it.
pub async fn an_override_of_a_limit_group_is_kept_and_its_end_is_recorded_ahead(mut subject: Subject) {
    subject.make_groups([1]).await;
    let history = async |subject: &Subject| {
        let changes = subject.store.limit_group_changes(group(1).id).await.expect("read");
        changes.into_iter().map(|change| (change.at.since(NOW).as_secs(), change.limits)).collect::<Vec<_>>()
    };
    let hold = Some(Hold { until: NOW + seconds(50), reason: "their maintenance".to_owned() });
    let temporary = Temporary { hold, ..per_second_until(50, NOW + seconds(100)) };
    let raised = LimitGroup { temporary, updated_at: NOW + seconds(10), ..group(1) };
    subject.set_group(Some(group(1).updated_at), raised.clone()).await;
    subject.reopen().await;
    let read = subject.store.limit_groups(&[raised.id]).await.expect("read");
    assert_eq!(read, [Some(Arc::new(raised.clone()))]);
    assert_eq!(history(&subject).await, [(1, per_second(10)), (10, per_second(50)), (100, per_second(10))]);
    let edited = LimitGroup { rate_limits: per_second(20), updated_at: NOW + seconds(20), ..raised.clone() };
    subject.set_group(Some(raised.updated_at), edited.clone()).await;
    assert_eq!(history(&subject).await, [(1, per_second(10)), (10, per_second(50)), (100, per_second(20))]);
    let ended = LimitGroup { temporary: Temporary::default(), updated_at: NOW + seconds(30), ..edited.clone() };
    subject.set_group(Some(edited.updated_at), ended).await;
    assert_eq!(history(&subject).await, [(1, per_second(10)), (10, per_second(50)), (30, per_second(20))]);
}

pub async fn the_name_of_a_limit_group_is_taken_once_in_its_tenant(subject: Subject) {
    let named = |number, tenant: Option<&str>| LimitGroup {
        name: "stripe".to_owned(),
        tenant: tenant.map(str::to_owned),
        ..group(number)
    };
    for (number, tenant) in [(1, None), (2, Some("acme")), (3, Some("globex"))] {
        assert!(matches!(subject.set_group(None, named(number, tenant)).await, GroupChange::Made(_)));
        assert_eq!(subject.set_group(None, named(number + 10, tenant)).await, GroupChange::Taken);
        let found = subject.store.limit_group_named(tenant, "stripe").await.expect("read");
        assert_eq!(found, Some(Arc::new(named(number, tenant))));
    }
    assert_eq!(subject.store.limit_group_named(None, "Stripe").await.expect("read"), None);
    let calls = (20..40u128).map(|number| {
        let (store, made) = (Arc::clone(&subject.store), LimitGroup { name: "once".to_owned(), ..group(number) });
        tokio::spawn(async move { store.set_limit_group(None, made, activity().into()).await.expect("set") })
    });
    let mut made = 0;
    for call in calls.collect::<Vec<_>>() {
        made += u32::from(matches!(call.await.expect("a call"), GroupChange::Made(_)));
    }
    assert_eq!(made, 1);
}

pub async fn limit_groups_are_listed_newest_first_and_by_tenant(subject: Subject) {
    for number in 1..=5 {
        let tenant = (number % 2 == 1).then(|| "acme".to_owned());
        subject.set_group(None, LimitGroup { tenant, ..group(number) }).await;
    }
    let list = async |tenants: TenantScope, before: Option<u128>, limit: u32| {
        let before = before.map(|number| *group(number).id.as_bytes());
        let page = subject.store.list_limit_groups(&tenants, PageRequest { before, limit }).await.expect("list");
        let ids: Vec<LimitGroupId> = page.rows.iter().map(|group| group.id).collect();
        (ids, page.next.is_some())
    };
    let ids = |numbers: &[u128]| numbers.iter().map(|number| group(*number).id).collect::<Vec<_>>();
    assert_eq!(list(TenantScope::All, None, 3).await, (ids(&[5, 4, 3]), true));
    assert_eq!(list(TenantScope::All, Some(3), 3).await, (ids(&[2, 1]), false));
    assert_eq!(list(TenantScope::one("acme"), None, 10).await, (ids(&[5, 3, 1]), false));
    assert_eq!(list(TenantScope::one("globex"), None, 10).await, (ids(&[]), false));
    let edited = subject.store.limit_groups_edited_after((NOW + seconds(1), group(3).id), 10).await.expect("read");
    assert_eq!(edited.iter().map(|group| group.id).collect::<Vec<_>>(), ids(&[4, 5]));
}

pub async fn a_destination_joins_and_leaves_a_limit_group(mut subject: Subject) {
    subject.make_groups([1, 2]).await;
    let made = subject.create(member(1, 1)).await;
    assert_eq!((made.settings.limit_group, made.settings.weight), (Some(group(1).id), 5));
    assert!(made.left_homes.is_empty());
    let moved = subject.move_to(1, Some(2), 10).await.expect("moved");
    assert_eq!(moved.left_homes, [Home::Group(group(1).id)]);
    subject.reopen().await;
    assert_eq!(subject.store.destination(made.id).await.expect("read"), Some(moved.clone()));
    let one = |joined: u64, left: Option<u64>| Membership {
        destination_id: made.id,
        joined_at: NOW + seconds(joined),
        left_at: left.map(|left| NOW + seconds(left)),
    };
    assert_eq!(subject.members_of(1, 9).await, [one(0, Some(10))]);
    assert_eq!(subject.members_of(1, 10).await, []);
    assert_eq!(subject.members_of(2, 9).await, [one(10, None)]);
    // Without a group, and with one again: each home is left once, the latest last.
    subject.move_to(1, None, 11).await.expect("moved");
    let moved = subject.move_to(1, Some(1), 12).await.expect("moved");
    let left = [Home::Group(group(1).id), Home::Group(group(2).id), Home::Own];
    assert_eq!(moved.left_homes, left);
    assert_eq!(subject.members_of(1, 9).await, [one(0, Some(10)), one(12, None)]);
    let deleted = async |number| {
        let (id, version) = (group(number).id, group(number).updated_at);
        subject.store.delete_limit_group(id, version, activity()).await.expect("delete")
    };
    assert_eq!(deleted(1).await, GroupDeletion::HasMembers);
    assert_eq!(deleted(2).await, GroupDeletion::Deleted);
    subject.delete(1).await;
    assert_eq!(subject.members_of(1, 0).await.last().and_then(|one| one.left_at), Some(NOW + seconds(1)));
    assert_eq!(subject.store.group_senders(group(1).id, NOW).await.expect("read"), [made.id]);
    assert_eq!(deleted(1).await, GroupDeletion::Deleted);
}

pub async fn homes_are_forgotten_only_by_who_has_read_the_last_edit(subject: Subject) {
    subject.make_groups([1, 2]).await;
    subject.create(member(1, 1)).await;
    let first = subject.move_to(1, Some(2), 10).await.expect("moved");
    let second = subject.move_to(1, None, 11).await.expect("moved");
    let left = [Home::Group(group(1).id), Home::Group(group(2).id)];
    subject.store.homes_left(first.id, first.updated_at, &left).await.expect("forgotten");
    let read = async || subject.store.destination(first.id).await.expect("read").expect("a destination");
    assert_eq!(read().await.left_homes, left, "it has moved since");
    subject.store.homes_left(first.id, second.updated_at, &left[..1]).await.expect("forgotten");
    assert_eq!(*read().await, Destination { left_homes: vec![left[1]], ..(*second).clone() });
    for (n, at) in (0..).zip(12..30) {
        let moved = subject.move_to(1, Some(1 + n % 2), at).await;
        assert!(moved.expect("two groups are two homes").left_homes.len() <= 3);
    }
    subject.make_groups(3..=20).await;
    let mut moves = 0;
    for (number, at) in (3..=20).zip(40..) {
        moves += usize::from(subject.move_to(1, Some(number), at).await.is_some());
    }
    // The first of these moves leaves a home that is among the three already.
    assert_eq!((read().await.left_homes.len(), moves), (MAX_LEFT_HOMES, 1 + MAX_LEFT_HOMES - 3));
}

pub async fn a_destination_joins_only_a_limit_group_that_takes_it(subject: Subject) {
    let created = async |destination: Destination| {
        subject.store.create_destination(destination, creation()).await.expect("create").into_new().is_some()
    };
    assert!(!created(member(1, 1)).await, "there is no such group");
    subject.set_group(None, LimitGroup { tenant: Some("acme".to_owned()), ..group(1) }).await;
    let mut foreign = member(2, 1);
    foreign.settings.tenant = "globex".to_owned();
    assert!(!created(foreign).await, "of another tenant");
    assert!(created(member(1, 1)).await);
    assert!(subject.move_to(1, Some(2), 10).await.is_none(), "there is no such group");
    for number in 2..=MAX_MEMBERS as u128 {
        assert!(created(member(number, 1)).await);
    }
    subject.create(destination(2_000)).await;
    assert!(!created(member(2_001, 1)).await);
    let named = subject.store.create_named_destination(member(2_001, 1), activity()).await.expect("create");
    assert!(!named.is_new());
    assert!(subject.move_to(2_000, Some(1), 10).await.is_none());
    subject.move_to(1, None, 11).await.expect("moved");
    subject.move_to(2_000, Some(1), 12).await.expect("there is room again");
}
