//! Which cores the workers get.

use core_affinity::CoreId;

use crate::config::CoreChoice;
use crate::{EngineConfig, StartError};

/// The cores that the calling thread may use, by their ids: `taskset`, `cpuset` and containers are in its mask. Workers are
/// pinned within those of the thread that starts the engine.
pub fn allowed() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

/// A core for each of `workers` workers, in the order of their numbers; `None`: not pinned.
///
/// At most one worker per core; surplus workers are not pinned.
pub(crate) fn assign(
    choice: &CoreChoice,
    allowed: &[usize],
    workers: usize,
) -> Result<Vec<Option<usize>>, StartError> {
    let cores: &[usize] = match choice {
        CoreChoice::None => &[],
        CoreChoice::Auto => allowed,
        CoreChoice::List(list) => {
            if let Some(&core) = list.iter().find(|core| !allowed.contains(core)) {
                return Err(StartError::Core {
                    core,
                    allowed: allowed.to_vec(),
                });
            }
            list
        }
    };
    Ok((0..workers).map(|w| cores.get(w).copied()).collect())
}

/// What can have no effect on the cores that there are.
pub(crate) fn without_effect(
    config: &EngineConfig,
    allowed: &[usize],
    workers: usize,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let CoreChoice::List(list) = &config.cores {
        let unused = list.iter().skip(workers);
        warnings.extend(unused.map(|core| {
            format!("moonring.cores: no effect of core {core}, because there are fewer workers than cores")
        }));
    }
    if config.busy_poll && allowed.len() < 2 {
        warnings.push(
            "moonring.busy_poll: no effect, because workers that spin never take the last core, and there is one"
                .to_owned(),
        );
    }
    warnings
}

/// Pins the calling thread.
pub(crate) fn pin(core: usize) -> bool {
    core_affinity::set_for_current(CoreId { id: core })
}
