//! Tenants take turns, and the clients of a tenant: operations that wait for a commit, each in the lane of its tenant.
//!
//! The lanes are served by deficit round robin (Shreedhar and Varghese, 1996): each turn of a lane adds the same
//! credit, and an operation leaves once its lane has saved as many rows as it writes. So every tenant gets an equal
//! share of the rows, however many operations another tenant has waiting, and however large they are. Within a lane each
//! client has one operation in turn, so one with a thousand waiting keeps a quiet one waiting for a single operation.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use weir_core::shed::ClientId;

/// The rows that one turn adds to the credit of a lane: as many as a usual commit writes.
const CREDIT: usize = 512;

/// Waiting operations, by tenant.
#[derive(Debug)]
pub struct Turns<T> {
    lanes: HashMap<Arc<str>, Lane<T>>,
    /// The tenants with waiting operations. The first one has its turn.
    order: VecDeque<Arc<str>>,
    waiting: usize,
}

#[derive(Debug)]
struct Lane<T> {
    /// In the order of arrival, with the rows that each writes. No entry is empty.
    operations: HashMap<ClientId, VecDeque<(T, usize)>>,
    /// The clients with waiting operations. The first one has its turn.
    order: VecDeque<ClientId>,
    credit: usize,
}

impl<T> Lane<T> {
    fn push(&mut self, client: ClientId, operation: T, rows: usize) {
        let operations = self.operations.entry(client).or_default();
        if operations.is_empty() {
            self.order.push_back(client);
        }
        operations.push_back((operation, rows));
    }

    /// The rows of the next operation.
    fn rows(&self) -> usize {
        let next = self.order.front().and_then(|client| self.operations.get(client)?.front());
        next.map_or(0, |(_, rows)| *rows)
    }

    fn pop(&mut self) -> Option<T> {
        let client = self.order.pop_front()?;
        let operations = self.operations.get_mut(&client)?;
        let (operation, _) = operations.pop_front()?;
        if operations.is_empty() {
            self.operations.remove(&client);
        } else {
            self.order.push_back(client);
        }
        Some(operation)
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), order: VecDeque::new(), waiting: 0 }
    }
}

impl<T> Turns<T> {
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The number of waiting operations.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Adds an operation that writes this many rows. `turn`: its tenant and its client.
    pub fn push(&mut self, operation: T, turn: impl Fn(&T) -> (&str, ClientId), rows: usize) {
        self.waiting += 1;
        let (tenant, client) = turn(&operation);
        if let Some(lane) = self.lanes.get_mut(tenant) {
            lane.push(client, operation, rows);
            return;
        }
        let tenant: Arc<str> = tenant.into();
        let mut lane = Lane { operations: HashMap::new(), order: VecDeque::new(), credit: CREDIT };
        lane.push(client, operation, rows);
        self.order.push_back(Arc::clone(&tenant));
        self.lanes.insert(tenant, lane);
    }

    /// Removes the operation whose turn it is, if its number of rows `fits`. Otherwise it waits for its next turn, so
    /// that small operations which come meanwhile go first.
    pub fn pop(&mut self, fits: impl FnOnce(usize) -> bool) -> Option<T> {
        loop {
            let lane = self.lanes.get_mut(self.order.front()?)?;
            let rows = lane.rows();
            if lane.credit < rows {
                lane.credit += CREDIT;
                self.order.rotate_left(1);
                continue;
            }
            if !fits(rows) {
                lane.credit = rows.saturating_sub(1);
                return None;
            }
            lane.credit -= rows;
            let operation = lane.pop();
            // An empty lane loses its credit: nobody saves turns while nothing waits.
            if lane.operations.is_empty()
                && let Some(tenant) = self.order.pop_front()
            {
                self.lanes.remove(&tenant);
            }
            self.waiting -= usize::from(operation.is_some());
            return operation;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(turns: &mut Turns<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.pop(|_| true)).collect()
    }

    #[test]
    fn operations_of_one_tenant_keep_their_order() {
        let mut turns = Turns::default();
        for (name, rows) in [("a", 1), ("b", 10_000), ("c", 1)] {
            turns.push(name, |_| ("acme", ClientId::default()), rows);
        }
        assert_eq!((turns.len(), all(&mut turns)), (3, vec!["a", "b", "c"]));
        assert!(turns.is_empty());
    }

    #[test]
    fn a_small_operation_goes_before_large_ones_that_came_earlier() {
        let mut turns = Turns::default();
        for _ in 0..100 {
            turns.push("large", |_| ("acme", ClientId::default()), 8_192);
        }
        turns.push("small", |_| ("globex", ClientId::default()), 1);
        assert_eq!(turns.pop(|_| true), Some("small"));
    }

    #[test]
    fn a_quiet_client_waits_for_one_operation_of_another_in_its_tenant() {
        let mut turns = Turns::default();
        let (loud, quiet) = (ClientId::of("key", "loud"), ClientId::of("key", "quiet"));
        for name in ["first", "second", "third"] {
            turns.push(name, |_| ("acme", loud), 1);
        }
        turns.push("quiet", |_| ("acme", quiet), 1);
        assert_eq!(all(&mut turns), ["first", "quiet", "second", "third"]);
        assert!(turns.is_empty() && turns.lanes.is_empty());
    }

    #[test]
    fn tenants_get_equal_shares_of_the_rows() {
        let mut turns = Turns::default();
        for _ in 0..10 {
            turns.push("large", |_| ("acme", ClientId::default()), 8 * CREDIT);
        }
        for _ in 0..10_000 {
            turns.push("small", |_| ("globex", ClientId::default()), 1);
        }
        let first: Vec<_> = (0..8 * CREDIT).filter_map(|_| turns.pop(|_| true)).collect();
        let large = first.iter().filter(|name| **name == "large").count();
        assert!((1..=2).contains(&large), "{large} large operations beside {} small ones", first.len() - large);
    }

    #[test]
    fn an_operation_that_does_not_fit_goes_behind_a_small_one() {
        let mut turns = Turns::default();
        turns.push("large", |_| ("acme", ClientId::default()), 8_192);
        assert_eq!(turns.pop(|rows| rows < 100), None);
        turns.push("small", |_| ("globex", ClientId::default()), 1);
        assert_eq!(all(&mut turns), ["small", "large"]);
    }
}
