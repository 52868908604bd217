//! The names of states in statements. The tables have the states of deliveries and the phases of replays as numbers
//! ([`state_code`](crate::rows::state_code), [`phase_code`](crate::rows::phase_code)), and [`sql!`](crate::sql) writes
//! the number where a statement has the name.

/// What a name in braces stands for. `waiting` are the states of a delivery that waits, as a list; `moving` and the names
/// after it are phases of a replay, and `open_replay` are those of one that has steps left.
const STATES: [(&str, &str); 14] = [
    ("pending", "0"),
    ("delivering", "1"),
    ("retrying", "2"),
    ("delivered", "3"),
    ("failed", "4"),
    ("dead", "5"),
    ("cancelled", "6"),
    ("superseded", "7"),
    ("expired", "8"),
    ("waiting", "0, 2"),
    ("moving", "0"),
    ("moved", "1"),
    ("cancelling", "3"),
    ("open_replay", "0, 1, 3"),
];

/// A statement, or a part of one, with the numbers of the states that it names: `state IN ({waiting})`,
/// `SET state = {cancelled}`. Those that have not ended are `state < {delivered}`, and those that ended undelivered
/// are `state > {delivered}`. Another name does not compile.
#[macro_export]
macro_rules! sql {
    ($text:expr) => {{
        const NAMED: &str = $text;
        const NUMBERED: [u8; $crate::state_names::length(NAMED)] = $crate::state_names::numbered(NAMED);
        const SQL: &str = match ::core::str::from_utf8(&NUMBERED) {
            Ok(sql) => sql,
            Err(_) => panic!("a statement is cut inside a character"),
        };
        SQL
    }};
}

/// The length of a statement with numbers.
pub const fn length(named: &str) -> usize {
    write(named.as_bytes(), &mut [])
}

/// A statement with numbers.
pub const fn numbered<const LENGTH: usize>(named: &str) -> [u8; LENGTH] {
    let mut into = [0; LENGTH];
    write(named.as_bytes(), &mut into);
    into
}

/// Writes as much as has room, and returns the whole length.
const fn write(named: &[u8], into: &mut [u8]) -> usize {
    let (mut at, mut length) = (0, 0);
    while at < named.len() {
        let (part, next) = match named[at] {
            b'{' => number_of(named, at + 1),
            _ => (named.split_at(at).1.split_at(1).0, at + 1),
        };
        let mut byte = 0;
        while byte < part.len() {
            if length < into.len() {
                into[length] = part[byte];
            }
            byte += 1;
            length += 1;
        }
        at = next;
    }
    length
}

/// What the name from an index on stands for, and the index after its closing brace.
const fn number_of(named: &[u8], from: usize) -> (&[u8], usize) {
    let mut state = 0;
    while state < STATES.len() {
        let name = STATES[state].0.as_bytes();
        let mut length = 0;
        while length < name.len() && from + length < named.len() && named[from + length] == name[length] {
            length += 1;
        }
        if length == name.len() && from + length < named.len() && named[from + length] == b'}' {
            return (STATES[state].1.as_bytes(), from + length + 1);
        }
        state += 1;
    }
    panic!("a statement names a state that does not exist")
}

#[cfg(test)]
mod tests {
    use weir_core::DeliveryState;

    use super::*;
    use crate::{
        ReplayPhase,
        rows::{phase_code, state_code},
    };

    #[test]
    fn every_state_has_its_number() {
        let states = DeliveryState::ALL.map(|state| (state.as_str().to_owned(), state_code(state).to_string()));
        assert_eq!(STATES[..9].to_vec(), states.each_ref().map(|(name, number)| (&**name, &**number)));
        let waiting = DeliveryState::ALL.into_iter().filter(|state| state.is_waiting());
        assert_eq!(STATES[9].1, waiting.map(|state| state_code(state).to_string()).collect::<Vec<_>>().join(", "));
    }

    #[test]
    fn every_named_phase_has_its_number() {
        let phases = [ReplayPhase::Moving, ReplayPhase::Moved, ReplayPhase::Cancelling];
        assert_eq!(
            STATES[10..13].iter().map(|(_, number)| *number).collect::<Vec<_>>(),
            phases.map(|phase| phase_code(phase).to_string())
        );
        let open = ReplayPhase::ALL.into_iter().filter(|phase| phase.is_open());
        assert_eq!(STATES[13].1, open.map(|phase| phase_code(phase).to_string()).collect::<Vec<_>>().join(", "));
    }

    #[test]
    fn a_statement_has_numbers_for_names() {
        assert_eq!(sql!("SET state = {cancelled} – {dead}"), "SET state = 6 – 5");
        assert_eq!(sql!(concat!("state IN ({waiting})", " OR state > {delivered}")), "state IN (0, 2) OR state > 3");
    }
}
