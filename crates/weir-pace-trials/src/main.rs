//! Prints the table of all pacers on all receivers: `weir-pace-trials [PART OF A NAME] [SEEDS]`.

use weir_pace_trials::table;

fn main() {
    let mut args = std::env::args().skip(1);
    let only = args.next().unwrap_or_default();
    let seeds = args.next().and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
    print!("{}", table::markdown(&only, seeds));
}
