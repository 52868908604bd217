//! Which schemas a program may use: the rules of `migrations/README.md`, for both stores.

/// A released migration, which never changes.
#[derive(Debug)]
pub struct Migration {
    pub version: i64,
    pub description: &'static str,
    pub sql: &'static str,
}

pub const fn migration(version: i64, description: &'static str, sql: &'static str) -> Migration {
    Migration { version, description, sql }
}

/// The migrations that are built into a program, in their order.
#[derive(Debug)]
pub struct Migrations(pub &'static [Migration]);

impl Migrations {
    /// The newest version that this program knows.
    pub fn latest(&self) -> i64 {
        self.0.last().map_or(0, |migration| migration.version)
    }

    /// The newest of the applied versions if it is newer than this program. The program may use such a schema only if
    /// the schema's marker allows it ([`Self::may_use`]).
    pub fn newer_version(&self, applied: &[i64]) -> Option<i64> {
        applied.iter().copied().max().filter(|newest| *newest > self.latest())
    }

    /// Whether this program may use a newer schema whose marker has this number: the program must know the migration
    /// with this number. Migrations that break older programs raise it.
    pub fn may_use(&self, oldest_program: i64) -> bool {
        oldest_program <= self.latest()
    }

    /// The versions and descriptions of the migrations that were not applied before.
    pub fn missing(&self, applied: &[i64]) -> Vec<(i64, String)> {
        let missing = self.0.iter().filter(|migration| !applied.contains(&migration.version));
        missing.map(|migration| (migration.version, migration.description.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_schema_is_used_only_if_its_marker_allows_it() {
        let known = Migrations(&[
            Migration { version: 1, description: "initial", sql: "" },
            Migration { version: 2, description: "later", sql: "" },
        ]);
        assert_eq!(known.latest(), 2);
        assert_eq!(
            [&[][..], &[1], &[1, 2], &[1, 2, 3]].map(|applied| known.newer_version(applied)),
            [None, None, None, Some(3)]
        );
        assert_eq!([1, 2, 3].map(|oldest| known.may_use(oldest)), [true, true, false]);
        assert_eq!(known.missing(&[1]), [(2, "later".to_owned())]);
    }
}
