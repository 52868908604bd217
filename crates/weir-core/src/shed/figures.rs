//! What a process shows of its requests, for people and metrics.

use std::sync::Arc;

use super::{
    peaks::PeakFigures,
    request::{Class, Mode},
};

/// The figures of a class, for people and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassFigures {
    pub class: Class,
    pub in_flight: u32,
    /// Now; under pressure less than the limit of the policy, and 0 while the class is refused.
    pub limit: u32,
    pub peaks: PeakFigures,
}

/// The figures of a client in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFigures {
    pub name: Arc<str>,
    pub in_flight: u32,
    /// Its own limit, of all processes.
    pub limit: Option<u32>,
    pub weight: u32,
    pub refused: u64,
    pub peaks: PeakFigures,
}

/// The figures of a process.
#[derive(Debug, Clone)]
pub struct Figures {
    pub mode: Mode,
    pub level: u8,
    /// Whether the records of other processes are too old to be used.
    pub is_blind: bool,
    /// With this one.
    pub processes: u32,
    pub classes: Vec<ClassFigures>,
    /// The clients with the highest peaks.
    pub clients: Vec<ClientFigures>,
}
