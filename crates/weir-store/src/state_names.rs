//! The names in statements. The tables have the states of deliveries, the phases of replays and the outcomes of attempts as
//! numbers ([`state_code`](crate::rows::state_code), [`phase_code`](crate::rows::phase_code),
//! [`outcome_code`](crate::rows::outcome_code)), and [`sql!`](crate::sql) writes
//! the number where a statement has the name. Statements that differ in a few places are one text with names of their own.

use crate::rows::{counters, reservations, traffic};

/// Names with the texts that they stand for. The texts may have names too.
pub type Names = &'static [(&'static str, &'static str)];

/// The names that every statement may use. `waiting` are the states of a delivery that waits, as a list; `moving` and the
/// names after it are phases of a replay, and `open_replay` are those of one that has steps left. The names of
/// outcomes are those of attempts, and those of histograms are kinds of rows of traffic. `end_of_time` is
/// [`BEHIND`](weir_core::order::BEHIND), the due time of a delivery behind the head of its message group. No other delivery
/// is due then.
pub const NAMES: Names = &[
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
    ("outcome_delivered", "0"),
    ("outcome_retryable", "1"),
    ("outcome_rejected", "2"),
    ("outcome_unknown", "3"),
    ("latency_histogram", "0"),
    ("attempts_histogram", "1"),
    ("end_of_time", "9223372036854775807"),
    ("state_columns", counters::STATE_COLUMNS),
    ("summed_states", counters::SUMMED_STATES),
    ("added_states", counters::ADDED_STATES),
    ("waiting_and_undelivered", counters::WAITING_AND_UNDELIVERED),
    ("reservation_columns", reservations::RESERVATION_COLUMNS),
    ("traffic_columns", traffic::TRAFFIC_COLUMNS),
    ("summed_traffic", traffic::SUMMED_TRAFFIC),
    ("added_traffic", traffic::ADDED_TRAFFIC),
    ("all_traffic", traffic::ALL_TRAFFIC),
];

/// A statement, or a part of one, with the numbers of the states that it names: `state IN ({waiting})`,
/// `SET state = {cancelled}`. Those that have not ended are `state < {delivered}`, and those that ended undelivered
/// are `state > {delivered}`. The other arguments have further [`Names`]. Another name does not compile.
#[macro_export]
macro_rules! sql {
    ($text:expr $(, $names:expr)*) => {{
        const NAMED: &str = $text;
        const GIVEN: &[$crate::state_names::Names] = &[$($names,)* $crate::state_names::NAMES];
        const NUMBERED: [u8; $crate::state_names::length(NAMED, GIVEN)] = $crate::state_names::numbered(NAMED, GIVEN);
        const SQL: &str = match ::core::str::from_utf8(&NUMBERED) {
            Ok(sql) => sql,
            Err(_) => panic!("a statement is cut inside a character"),
        };
        SQL
    }};
}

/// The length of a statement with numbers.
pub const fn length(named: &str, names: &[Names]) -> usize {
    write(named.as_bytes(), names, &mut [], 0)
}

/// A statement with numbers.
pub const fn numbered<const LENGTH: usize>(named: &str, names: &[Names]) -> [u8; LENGTH] {
    let mut into = [0; LENGTH];
    write(named.as_bytes(), names, &mut into, 0);
    into
}

/// Writes as much as has room, from `length` on, and returns the whole length.
const fn write(named: &[u8], names: &[Names], into: &mut [u8], mut length: usize) -> usize {
    let mut at = 0;
    while at < named.len() {
        if named[at] == b'{' {
            let (text, next) = text_of(named, at + 1, names);
            length = write(text, names, into, length);
            at = next;
        } else {
            if length < into.len() {
                into[length] = named[at];
            }
            length += 1;
            at += 1;
        }
    }
    length
}

/// What the name from an index on stands for, and the index after its closing brace.
const fn text_of(named: &[u8], from: usize, names: &[Names]) -> (&'static [u8], usize) {
    let (mut list, mut index) = (0, 0);
    while list < names.len() {
        if index == names[list].len() {
            (list, index) = (list + 1, 0);
            continue;
        }
        let (name, text) = names[list][index];
        let (name, mut length) = (name.as_bytes(), 0);
        while length < name.len() && from + length < named.len() && named[from + length] == name[length] {
            length += 1;
        }
        if length == name.len() && from + length < named.len() && named[from + length] == b'}' {
            return (text.as_bytes(), from + length + 1);
        }
        index += 1;
    }
    panic!("a statement has a name that does not exist")
}

#[cfg(test)]
mod tests {
    use weir_core::{DeliveryState, delivery::AttemptOutcome, order::BEHIND};

    use super::*;
    use crate::{
        Histogram, ReplayPhase,
        rows::{outcome_code, phase_code, state_code},
    };

    #[test]
    fn every_state_has_its_number() {
        let states = DeliveryState::ALL.map(|state| (state.as_str().to_owned(), state_code(state).to_string()));
        assert_eq!(NAMES[..9], states.each_ref().map(|(name, number)| (&**name, &**number)));
        let waiting = DeliveryState::ALL.into_iter().filter(|state| state.is_waiting());
        assert_eq!(NAMES[9].1, waiting.map(|state| state_code(state).to_string()).collect::<Vec<_>>().join(", "));
    }

    #[test]
    fn every_named_phase_has_its_number() {
        let phases = [ReplayPhase::Moving, ReplayPhase::Moved, ReplayPhase::Cancelling];
        assert_eq!(
            NAMES[10..13].iter().map(|(_, number)| *number).collect::<Vec<_>>(),
            phases.map(|phase| phase_code(phase).to_string())
        );
        let open = ReplayPhase::ALL.into_iter().filter(|phase| phase.is_open());
        assert_eq!(NAMES[13].1, open.map(|phase| phase_code(phase).to_string()).collect::<Vec<_>>().join(", "));
    }

    #[test]
    fn every_outcome_and_histogram_has_its_number() {
        let outcomes =
            AttemptOutcome::ALL.map(|one| (format!("outcome_{}", <&str>::from(one)), outcome_code(one).to_string()));
        assert_eq!(NAMES[14..18], outcomes.each_ref().map(|(name, number)| (&**name, &**number)));
        let histograms = [Histogram::Latencies, Histogram::Attempts].map(|one| (one as i64).to_string());
        assert_eq!(NAMES[18..20].iter().map(|(_, number)| *number).collect::<Vec<_>>(), histograms);
    }

    #[test]
    fn statements_and_functions_have_the_end_of_time_of_the_code() {
        assert_eq!(sql!("{end_of_time}"), BEHIND.as_nanos().to_string());
        for function in [
            include_str!("../../../migrations/postgres/functions/store_events.sql"),
            include_str!("../../../migrations/postgres/functions/advance_message_groups.sql"),
        ] {
            let mut numbers =
                function.split(|c: char| !c.is_ascii_digit()).filter(|digits| digits.len() > 15).peekable();
            assert!(numbers.peek().is_some() && numbers.all(|number| number == sql!("{end_of_time}")));
        }
    }

    #[test]
    fn a_statement_has_texts_for_names() {
        assert_eq!(sql!("SET state = {cancelled} – {dead}"), "SET state = 6 – 5");
        const COLUMN: Names = &[("column", "a")];
        const CONDITION: Names = &[("condition", "{column} = {dead}")];
        assert_eq!(sql!("SELECT {column} WHERE {condition}", COLUMN, CONDITION), "SELECT a WHERE a = 5");
        assert_eq!(sql!(concat!("state IN ({waiting})", " OR state > {delivered}")), "state IN (0, 2) OR state > 3");
    }
}
