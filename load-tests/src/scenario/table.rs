//! The scenarios of the folder, built in, in the order in which they run.

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        /// Names and texts.
        pub(crate) const SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

scenarios!("steady",);
