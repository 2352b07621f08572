//! Kernels that a GPU runs in a training step: number, times, idle time.
//!
//! In: observed steps. Out: [`DeviceKernels`]; nothing for CPU backends, which launch no kernels.
//! Invariant: observation adds no waiting. The device's clock is read after the steps.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use records::{DeviceKernels, KernelShare};

#[derive(Clone, Debug, PartialEq)]
struct Launch {
    name: String,
    /// Start and end by the device's clock.
    span: Option<(Duration, Duration)>,
}

/// Summarises launches per step.
fn summed(launches: &[Launch], steps: usize) -> DeviceKernels {
    let per_step = |sum: f64| sum / steps.max(1) as f64;
    let mut by_name: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    let mut spans = Vec::with_capacity(launches.len());
    for launch in launches {
        let (count, time) = by_name.entry(&launch.name).or_default();
        *count += 1;
        if let Some((begin, end)) = launch.span {
            *time += end.saturating_sub(begin);
            spans.push((begin, end));
        }
    }
    spans.sort_unstable();
    let mut idle = Duration::ZERO;
    let mut busy_until = None;
    for &(begin, end) in &spans {
        let until: Duration = busy_until.unwrap_or(begin);
        idle += begin.saturating_sub(until);
        busy_until = Some(until.max(end));
    }
    let shares = by_name
        .into_iter()
        .map(|(name, (count, time))| KernelShare {
            name: name.to_owned(),
            launches_per_step: per_step(count as f64),
            seconds_per_step: per_step(time.as_secs_f64()),
        });
    let mut kernels: Vec<KernelShare> = shares.collect();
    kernels.sort_by(|a, b| b.seconds_per_step.total_cmp(&a.seconds_per_step));
    DeviceKernels {
        steps,
        launches_per_step: per_step(launches.len() as f64),
        seconds_per_step: kernels.iter().map(|kernel| kernel.seconds_per_step).sum(),
        idle_seconds_per_step: per_step(idle.as_secs_f64()),
        untimed_per_step: per_step((launches.len() - spans.len()) as f64),
        kernels,
    }
}

/// Runs steps with `make` and summarises their kernels. Returns `None` if there are no kernels.
///
/// `make` must return after the device has finished the steps.
pub fn observed(steps: usize, make: impl FnOnce() -> Result<()>) -> Result<Option<DeviceKernels>> {
    let launches = observer::launches(make)?;
    Ok((!launches.is_empty()).then(|| summed(&launches, steps)))
}

#[cfg(not(feature = "cuda"))]
mod observer {
    pub(super) fn launches(
        make: impl FnOnce() -> super::Result<()>,
    ) -> super::Result<Vec<super::Launch>> {
        make().map(|()| Vec::new())
    }
}

#[cfg(feature = "cuda")]
mod observer {
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use anyhow::Result;
    use cubecl::config::{TypeNameFormatLevel, type_name_format};
    use cubecl::future::block_on;
    use cubecl::logging::{
        LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
    };

    use super::Launch;

    /// Log of every launch with its measurement. Measurements are read after the steps.
    #[derive(Default)]
    struct LaunchLog(Mutex<Vec<(&'static str, Option<ProfileDuration>)>>);

    impl LaunchLog {
        fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, Option<ProfileDuration>)>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl LaunchObserver for LaunchLog {
        fn launched(&self, kernel: &'static str) {
            self.lock().push((kernel, None));
        }

        fn timing(&self) -> TimingRequest {
            TimingRequest::Deferred
        }

        fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
            // The profile follows its launch on the same thread. Launches of other threads may lie
            // between the two.
            let mut launches = self.lock();
            if let Some((_, span)) = launches
                .iter_mut()
                .rev()
                .find(|(name, span)| *name == kernel && span.is_none())
            {
                *span = Some(profile);
            }
        }

        fn timed(&self, _kernel: &'static str, _duration: Duration, _method: TimingMethod) {}
    }

    pub(super) fn launches(make: impl FnOnce() -> Result<()>) -> Result<Vec<Launch>> {
        let log = Arc::new(LaunchLog::default());
        let observation = LaunchObservation::new(log.clone());
        let made = make();
        drop(observation);
        made?;
        // Any instant before the first launch works, because only differences count.
        let epoch = Instant::now()
            .checked_sub(Duration::from_secs(3600))
            .unwrap_or_else(Instant::now);
        let kept = std::mem::take(&mut *log.lock());
        let launch = |(name, profile): (&'static str, Option<ProfileDuration>)| Launch {
            name: type_name_format(name, TypeNameFormatLevel::Short),
            span: profile
                .filter(|profile| profile.timing_method() == TimingMethod::Device)
                .and_then(|profile| block_on(profile.resolve()))
                .map(|ticks| {
                    (
                        ticks.start_duration_since(epoch),
                        ticks.end_duration_since(epoch),
                    )
                }),
        };
        Ok(kept.into_iter().map(launch).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(name: &str, span: Option<(u64, u64)>) -> Launch {
        let span =
            span.map(|(begin, end)| (Duration::from_millis(begin), Duration::from_millis(end)));
        Launch {
            name: name.to_owned(),
            span,
        }
    }

    #[test]
    fn times_are_summed_by_name_and_idle_time_is_not_covered_by_any_kernel() {
        // Kernel b overlaps a. The device idles for 7 ms between them and c, which is listed first.
        let launches = [
            launch("c", Some((20, 24))),
            launch("a", Some((0, 10))),
            launch("b", Some((5, 13))),
            launch("a", Some((24, 26))),
            launch("copy", None),
        ];
        let kernels = summed(&launches, 2);
        let close = |got: f64, milliseconds: f64| {
            assert!((got - 1e-3 * milliseconds).abs() < 1e-12, "{kernels:?}")
        };
        close(kernels.seconds_per_step, 12.0);
        close(kernels.idle_seconds_per_step, 3.5);
        assert_eq!(
            (kernels.launches_per_step, kernels.untimed_per_step),
            (2.5, 0.5)
        );
        let names: Vec<(&str, f64)> = kernels
            .kernels
            .iter()
            .map(|k| (k.name.as_str(), k.launches_per_step))
            .collect();
        assert_eq!(names, [("a", 1.0), ("b", 0.5), ("c", 0.5), ("copy", 0.5)]);
    }

    #[test]
    fn a_cpu_launches_no_kernels_and_the_steps_are_made() {
        let mut is_made = false;
        let kernels = observed(1, || {
            is_made = true;
            Ok(())
        });
        assert!(kernels.unwrap().is_none() && is_made);
    }
}
