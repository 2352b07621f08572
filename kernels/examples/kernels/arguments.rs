//! The command line.
//!
//! In: its words. Out: [`Arguments`], checked, or what is wrong with them.

use std::any::TypeId;
use std::str::FromStr;
use std::time::Duration;

use half::bf16;
use kernels::Element;
use kernels::conv2d::Algorithm;
use kernels::simd::Isa;

use crate::shapes::Layers;

pub(crate) const USAGE: &str = "\
Known flags, with their defaults:
  --threads 1           threads of the one pool that everything runs in
  --dtype f32           what activations are stored as: f32, bf16
  --convolution auto    algorithm: auto, direct
  --cpu auto            instruction set: auto, amx, avx512bf16, avx512, avx2, portable
  --batch 128           images; layers of ResNet-50 take at most 8 of them
  --layers all          cifar, resnet50, all: their convolutions and what moves memory in them;
                        or convolutions by name and at --batch, as '64->64@56k3s1,256->512@56k1s2':
                        channels, extent of the input, kernel, stride
  --seconds 0.3         repetitions of each measurement last so long
  --json                a JSON line for each measurement instead of the table";

/// What activations and their gradients are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    Bf16,
}

impl Dtype {
    pub(crate) fn of<E: Element>() -> Self {
        if TypeId::of::<E>() == TypeId::of::<bf16>() {
            Self::Bf16
        } else {
            Self::F32
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// What is measured and how.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) threads: usize,
    pub(crate) dtype: Dtype,
    pub(crate) algorithm: Algorithm,
    pub(crate) isa: Isa,
    pub(crate) batch: usize,
    pub(crate) layers: Layers,
    /// How long each measurement is repeated.
    pub(crate) time: Duration,
    pub(crate) json: bool,
}

impl Arguments {
    /// Reads the words behind the program's name; of a flag given twice the last counts.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            threads: 1,
            dtype: Dtype::F32,
            algorithm: Algorithm::Auto,
            isa: Isa::detect(),
            batch: 128,
            layers: Layers::ALL,
            time: Duration::from_millis(300),
            json: false,
        };
        while let Some(flag) = words.next() {
            let flag = flag.as_str();
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| format!("{flag}: expected a value behind it"))
            };
            match flag {
                "--threads" => arguments.threads = positive(flag, &value()?)?,
                "--dtype" => {
                    arguments.dtype = choice(
                        flag,
                        &value()?,
                        &[("f32", Dtype::F32), ("bf16", Dtype::Bf16)],
                    )?;
                }
                "--convolution" => {
                    let choices = [("auto", Algorithm::Auto), ("direct", Algorithm::Direct)];
                    arguments.algorithm = choice(flag, &value()?, &choices)?;
                }
                "--cpu" => arguments.isa = instruction_set(flag, &value()?)?,
                "--batch" => arguments.batch = positive(flag, &value()?)?,
                "--layers" => {
                    arguments.layers = value()?
                        .parse()
                        .map_err(|error| format!("{flag}: {error}"))?
                }
                "--seconds" => arguments.time = duration(flag, &value()?)?,
                "--json" => arguments.json = true,
                _ => return Err(format!("{flag}: not a known flag")),
            }
        }
        Ok(arguments)
    }
}

/// The choice that `value` names.
fn choice<T: Copy>(flag: &str, value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!(
            "{flag}: expected one of {}, got '{value}'",
            names.join(", ")
        )
    })
}

fn instruction_set(flag: &str, value: &str) -> Result<Isa, String> {
    let choices = [
        ("auto", Isa::detect()),
        ("amx", Isa::Amx),
        ("avx512bf16", Isa::Avx512Bf16),
        ("avx512", Isa::Avx512),
        ("avx2", Isa::Avx2Fma),
        ("portable", Isa::Portable),
    ];
    let isa = choice(flag, value, &choices)?;
    if isa.is_available() {
        return Ok(isa);
    }
    let offered: Vec<_> = choices
        .iter()
        .filter(|(_, isa)| isa.is_available())
        .map(|(name, _)| *name)
        .collect();
    Err(format!(
        "{flag} {value}: this processor lacks it; it offers {}",
        offered.join(", ")
    ))
}

fn positive(flag: &str, value: &str) -> Result<usize, String> {
    let number = usize::from_str(value).ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{flag}: expected a whole number above 0, got '{value}'"))
}

fn duration(flag: &str, value: &str) -> Result<Duration, String> {
    let duration = value
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("{flag}: expected seconds, got '{value}'"))
}
