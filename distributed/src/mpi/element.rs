//! Numbers that MPI can reduce, and their second buffers.
//!
//! In: a Rust number type. Out: MPI's datatype for it, and a buffer that the communicator keeps.
//! Invariant: datatype and type have the same size and layout.

use std::os::raw::c_int;

use ::mpi::ffi;

/// Second buffers for reductions, kept for the next one.
#[derive(Default)]
pub(super) struct Scratch {
    f32: Vec<f32>,
    f64: Vec<f64>,
    u64: Vec<u64>,
}

/// A number MPI can add up.
pub(super) trait Element: Copy {
    fn datatype() -> ffi::MPI_Datatype;
    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self>;
}

impl Element for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: the mpi crate's C shim initializes this constant before `main`; nobody writes it.
        unsafe { ffi::RSMPI_FLOAT }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.f32
    }
}

impl Element for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as for f32.
        unsafe { ffi::RSMPI_DOUBLE }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.f64
    }
}

impl Element for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as for f32.
        unsafe { ffi::RSMPI_UINT64_T }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.u64
    }
}

#[derive(Clone, Copy)]
pub(super) enum Operation {
    Sum,
    Max,
}

impl Operation {
    pub(super) fn raw(self) -> ffi::MPI_Op {
        // SAFETY: as for the datatypes.
        unsafe {
            match self {
                Self::Sum => ffi::RSMPI_SUM,
                Self::Max => ffi::RSMPI_MAX,
            }
        }
    }
}

/// A length or rank as a C `int`.
pub(super) fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("pieces are cut to fit a C int")
}
