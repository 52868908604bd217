//! A JSON number by its exact decimal value, of any length.

use std::cmp::Ordering;

/// `0.digits · 10^exponent`, without zeros at either end of the digits; zero has no digits. So equal numbers have equal
/// parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal {
    is_negative: bool,
    exponent: i64,
    digits: Vec<u8>,
}

/// No exponent of a number that anybody means has more digits. A longer one would overflow.
const MAX_EXPONENT_DIGITS: usize = 9;

impl Decimal {
    /// `text` is a JSON number. `None` if its exponent has too many digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        if exponent.len() > MAX_EXPONENT_DIGITS + 1 {
            return None;
        }
        let exponent: i64 = exponent.parse().ok()?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = || whole.bytes().chain(fraction.bytes());
        let leading = all().take_while(|digit| *digit == b'0').count();
        let mut digits: Vec<u8> = all().skip(leading).collect();
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            return Some(Self { is_negative: false, exponent: 0, digits });
        }
        Some(Self { is_negative, exponent: exponent + whole.len() as i64 - leading as i64, digits })
    }

    /// -1, 0 or 1.
    fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_size = || (self.exponent, &self.digits).cmp(&(other.exponent, &other.digits));
        self.sign().cmp(&other.sign()).then_with(|| if self.is_negative { by_size().reverse() } else { by_size() })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
