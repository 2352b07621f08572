//! CubeCL kernels of a normalisation.
//!
//! In: tables `[rows, C]` of f32, bf16 or f16 with contiguous channels; statistics `[C]` in f32.
//! Out: tables and statistics of the same kinds. A cube computes a block of rows. Its units along x
//! have one vector of channels each; its units along y, called lanes, iterate over the rows.
//! Invariant: sums are f32, without atomics, in an order that depends only on the shape: the rows
//! of a lane, then a tree over the lanes. A second launch sums the blocks in the same two steps.
//! Source: Chan, Golub and LeVeque 1983, The American Statistician 37 (3), formula 2.1, joins
//! moments.

// The macro makes of each kernel a module with public functions.
#![allow(missing_docs, unreachable_pub)]

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use kernels::batch_norm::Rectifier;

use super::{TablePlan, like};

/// A table with the normalisation of its channels.
pub struct Norm {
    /// `[groups, rows, C]`.
    pub input: CubeTensor,
    /// `[C]`.
    pub gamma: CubeTensor,
    /// `[C]`.
    pub beta: CubeTensor,
    /// `[C]`.
    pub mean: CubeTensor,
    /// `[C]`, biased.
    pub variance: CubeTensor,
    /// Number of values per channel in the statistics.
    pub num_values: f64,
}

/// Operations after the division by the standard deviation.
#[derive(Clone, Copy, Debug)]
pub struct NormEnd {
    /// Added to the variance before the square root.
    pub epsilon: f64,
    /// True if a residual is added to the normalised values.
    pub has_residual: bool,
    /// Activation after the sum.
    pub rectifier: Rectifier,
}

/// Returns the mean and the biased variance of each channel, `[1, 1, C]` in f32.
pub fn moments(table: CubeTensor) -> (CubeTensor, CubeTensor) {
    let table = into_contiguous(table);
    let plan = TablePlan::of(&table);
    let [means, squares] = [(); 2].map(|()| plan.empty(&table, plan.blocks));
    let [mean, variance] = [(); 2].map(|()| plan.empty(&table, 1));
    let client = table.client.clone();
    let address = table.required_address_type();
    let element = dtype_to_storage_type(table.dtype);
    block_moments::launch(
        &client,
        plan.all(),
        plan.cube(),
        address,
        plan.vector,
        table.into_buffer_arg(),
        means.clone().into_buffer_arg(),
        squares.clone().into_buffer_arg(),
        plan.table(),
        plan.units(),
        element,
    );
    whole_moments::launch(
        &client,
        plan.one_block(),
        plan.cube(),
        address,
        plan.vector,
        means.into_buffer_arg(),
        squares.into_buffer_arg(),
        mean.clone().into_buffer_arg(),
        variance.clone().into_buffer_arg(),
        plan.table(),
        plan.blocks,
        plan.units(),
    );
    (mean, variance)
}

/// Returns `rectified(gamma * (x - mean) / std + beta + residual)` in the shape and format of the
/// table. `residual` has the same shape; without a residual it may be any tensor.
pub fn apply(norm: Norm, residual: CubeTensor, end: NormEnd) -> CubeTensor {
    let table = into_contiguous(norm.input);
    let plan = TablePlan::of(&table);
    // Without a residual the kernel does not read the tensor.
    let residual = if end.has_residual {
        like(residual, &table)
    } else {
        table.clone()
    };
    let [mean, variance, gamma, beta] = [norm.mean, norm.variance, norm.gamma, norm.beta]
        .map(|row| into_contiguous(row).into_buffer_arg());
    let output = plan.empty_like(&table);
    apply_norm::launch(
        &output.client,
        plan.all(),
        plan.cube(),
        table.required_address_type(),
        plan.vector,
        table.into_buffer_arg(),
        mean,
        variance,
        gamma,
        beta,
        residual.into_buffer_arg(),
        output.clone().into_buffer_arg(),
        plan.table(),
        end.epsilon as f32,
        end.has_residual,
        end.rectifier != Rectifier::None,
        end.rectifier == Rectifier::Relu6,
        dtype_to_storage_type(output.dtype),
    );
    output
}

/// Returns three tensors: the gradient with respect to the input of the rectifier (`output` is the
/// rectifier's output), its sums over the rows, and the sums of the gradient times the normalised
/// input.
pub fn gradient_sums(
    norm: Norm,
    output: CubeTensor,
    dy: CubeTensor,
    end: NormEnd,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let table = into_contiguous(norm.input);
    let plan = TablePlan::of(&table);
    let dy = like(dy, &table);
    let is_rectified = end.rectifier != Rectifier::None;
    // Without a rectifier the gradient is unchanged. The kernel then does not read `output`.
    let output = if is_rectified {
        like(output, &table)
    } else {
        dy.clone()
    };
    let gated = if is_rectified {
        plan.empty_like(&table)
    } else {
        plan.empty_gate(&table)
    };
    let [sums, sums_with_centred] = [(); 2].map(|()| plan.empty(&table, plan.blocks));
    let [plain, with_normalised] = [(); 2].map(|()| plan.empty(&table, 1));
    let client = table.client.clone();
    let address = table.required_address_type();
    let element = dtype_to_storage_type(table.dtype);
    block_gradient_sums::launch(
        &client,
        plan.all(),
        plan.cube(),
        address,
        plan.vector,
        table.into_buffer_arg(),
        into_contiguous(norm.mean).into_buffer_arg(),
        output.into_buffer_arg(),
        dy.clone().into_buffer_arg(),
        gated.clone().into_buffer_arg(),
        sums.clone().into_buffer_arg(),
        sums_with_centred.clone().into_buffer_arg(),
        plan.table(),
        is_rectified,
        end.rectifier == Rectifier::Relu6,
        plan.units(),
        element,
    );
    whole_gradient_sums::launch(
        &client,
        plan.one_block(),
        plan.cube(),
        address,
        plan.vector,
        sums.into_buffer_arg(),
        sums_with_centred.into_buffer_arg(),
        into_contiguous(norm.variance).into_buffer_arg(),
        plain.clone().into_buffer_arg(),
        with_normalised.clone().into_buffer_arg(),
        plan.table(),
        plan.blocks,
        end.epsilon as f32,
        plan.units(),
    );
    (
        if is_rectified { gated } else { dy },
        plain,
        with_normalised,
    )
}

/// Returns the gradient of the table from the gradient of the rectifier's input and both sums over
/// all ranks.
pub fn gradient_input(
    norm: Norm,
    plain: CubeTensor,
    with_normalised: CubeTensor,
    dy: CubeTensor,
    end: NormEnd,
) -> CubeTensor {
    let table = into_contiguous(norm.input);
    let plan = TablePlan::of(&table);
    let dy = like(dy, &table);
    let [mean, variance, gamma, plain, with_normalised] =
        [norm.mean, norm.variance, norm.gamma, plain, with_normalised]
            .map(|row| into_contiguous(row).into_buffer_arg());
    let dx = plan.empty_like(&table);
    input_gradients::launch(
        &dx.client,
        plan.all(),
        plan.cube(),
        table.required_address_type(),
        plan.vector,
        table.into_buffer_arg(),
        mean,
        variance,
        gamma,
        plain,
        with_normalised,
        dy.into_buffer_arg(),
        dx.clone().into_buffer_arg(),
        plan.table(),
        end.epsilon as f32,
        (1.0 / norm.num_values) as f32,
        dtype_to_storage_type(dx.dtype),
    );
    dx
}

/// Partition of a table.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Table {
    rows: usize,
    /// Channel vectors per row.
    columns: usize,
    rows_of_block: usize,
}

#[cube]
fn this_column() -> usize {
    (CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X) as usize
}

/// Returns this lane's first row.
#[cube]
fn first_row(table: &Table) -> usize {
    CUBE_POS_Y as usize * table.rows_of_block + UNIT_POS_Y as usize
}

/// Returns the index after the block's last row.
#[cube]
fn last_row(table: &Table) -> usize {
    let end = (CUBE_POS_Y as usize + 1) * table.rows_of_block;
    select(end < table.rows, end, table.rows)
}

#[cube]
fn inverse_std<N: Size>(variance: Vector<f32, N>, epsilon: f32) -> Vector<f32, N> {
    Vector::new(1.0f32) / (variance + Vector::new(epsilon)).sqrt()
}

/// Computes the moments of each block: `[blocks, C]` means and sums of squared deviations from the
/// mean.
///
/// A lane first takes deviations from its first value, one of its n values. The sum of their
/// squares is at most n + 1 times the sum around the mean. So the subtraction loses at most n
/// roundings, however far the mean is from zero.
#[cube(launch, address_type = "dynamic")]
pub(super) fn block_moments<E: Float, N: Size>(
    input: &[Vector<E, N>],
    means: &mut [Vector<f32, N>],
    squares: &mut [Vector<f32, N>],
    table: &Table,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let column = this_column();
    let end = last_row(table);
    let mut row = first_row(table);
    let mut count = 0.0f32;
    let mut mean = Vector::<f32, N>::new(0.0f32);
    let mut square = Vector::<f32, N>::new(0.0f32);
    if column < table.columns && row < end {
        let origin = Vector::<f32, N>::cast_from(input[row * table.columns + column]);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        while row < end {
            let value = Vector::<f32, N>::cast_from(input[row * table.columns + column]) - origin;
            sum += value;
            square += value * value;
            count += 1.0f32;
            row += CUBE_DIM_Y as usize;
        }
        let shift = sum / Vector::new(count);
        mean = origin + shift;
        square -= sum * shift;
    }

    let unit = UNIT_POS as usize;
    let mut lane_counts = Shared::<[f32]>::new_slice(units);
    let mut lane_means = Shared::<[Vector<f32, N>]>::new_slice(units);
    let mut lane_squares = Shared::<[Vector<f32, N>]>::new_slice(units);
    lane_counts[unit] = count;
    lane_means[unit] = mean;
    lane_squares[unit] = square;
    join_lanes::<N>(&mut lane_counts, &mut lane_means, &mut lane_squares);
    if UNIT_POS_Y == 0 && column < table.columns {
        let to = CUBE_POS_Y as usize * table.columns + column;
        means[to] = lane_means[unit];
        squares[to] = lane_squares[unit];
    }
}

/// Merges the moments of all blocks: `[C]` means and biased variances.
#[cube(launch, address_type = "dynamic")]
pub(super) fn whole_moments<N: Size>(
    means: &[Vector<f32, N>],
    squares: &[Vector<f32, N>],
    mean: &mut [Vector<f32, N>],
    variance: &mut [Vector<f32, N>],
    table: &Table,
    blocks: usize,
    #[comptime] units: usize,
) {
    let column = this_column();
    let unit = UNIT_POS as usize;
    let mut lane_counts = Shared::<[f32]>::new_slice(units);
    let mut lane_means = Shared::<[Vector<f32, N>]>::new_slice(units);
    let mut lane_squares = Shared::<[Vector<f32, N>]>::new_slice(units);
    lane_counts[unit] = 0.0f32;
    lane_means[unit] = Vector::new(0.0f32);
    lane_squares[unit] = Vector::new(0.0f32);
    if column < table.columns {
        let mut block = UNIT_POS_Y as usize;
        while block < blocks {
            let left = table.rows - block * table.rows_of_block;
            let count = select(left < table.rows_of_block, left, table.rows_of_block);
            let at = block * table.columns + column;
            join::<N>(
                &mut lane_counts,
                &mut lane_means,
                &mut lane_squares,
                unit,
                f32::cast_from(count),
                means[at],
                squares[at],
            );
            block += CUBE_DIM_Y as usize;
        }
    }
    join_lanes::<N>(&mut lane_counts, &mut lane_means, &mut lane_squares);
    if UNIT_POS_Y == 0 && column < table.columns {
        mean[column] = lane_means[unit];
        variance[column] = lane_squares[unit] / Vector::new(lane_counts[unit]);
    }
}

/// Merges other moments into those of a unit.
#[cube]
fn join<N: Size>(
    counts: &mut Shared<[f32]>,
    means: &mut Shared<[Vector<f32, N>]>,
    squares: &mut Shared<[Vector<f32, N>]>,
    unit: usize,
    count: f32,
    mean: Vector<f32, N>,
    square: Vector<f32, N>,
) {
    let before = counts[unit];
    let all = before + count;
    // Without values the share is 0.
    let share = count / select(all > 0.0f32, all, 1.0f32);
    let distance = mean - means[unit];
    counts[unit] = all;
    means[unit] += distance * Vector::new(share);
    squares[unit] += square + distance * distance * Vector::new(before * share);
}

/// Merges the moments of all lanes into the first lane, as a tree.
#[cube]
fn join_lanes<N: Size>(
    counts: &mut Shared<[f32]>,
    means: &mut Shared<[Vector<f32, N>]>,
    squares: &mut Shared<[Vector<f32, N>]>,
) {
    let unit = UNIT_POS as usize;
    let mut lanes = CUBE_DIM_Y;
    sync_cube();
    while lanes > 1 {
        lanes /= 2;
        if UNIT_POS_Y < lanes {
            let other = unit + (lanes * CUBE_DIM_X) as usize;
            let count = counts[other];
            let mean = means[other];
            let square = squares[other];
            join::<N>(counts, means, squares, unit, count, mean, square);
        }
        sync_cube();
    }
}

/// Computes `rectified((input - mean) * gamma / std + beta + residual)` in the input's type.
#[cube(launch, address_type = "dynamic")]
pub(super) fn apply_norm<E: Float, N: Size>(
    input: &[Vector<E, N>],
    mean: &[Vector<f32, N>],
    variance: &[Vector<f32, N>],
    gamma: &[Vector<f32, N>],
    beta: &[Vector<f32, N>],
    residual: &[Vector<E, N>],
    output: &mut [Vector<E, N>],
    table: &Table,
    epsilon: f32,
    #[comptime] has_residual: bool,
    #[comptime] is_rectified: bool,
    #[comptime] is_limited: bool,
    #[define(E)] _element: ElemType,
) {
    let column = this_column();
    let end = last_row(table);
    if column < table.columns {
        let mean = mean[column];
        let scale = gamma[column] * inverse_std::<N>(variance[column], epsilon);
        let shift = beta[column];
        let mut row = first_row(table);
        while row < end {
            let at = row * table.columns + column;
            let mut value = (Vector::<f32, N>::cast_from(input[at]) - mean) * scale + shift;
            if comptime!(has_residual) {
                value += Vector::<f32, N>::cast_from(residual[at]);
            }
            if comptime!(is_rectified) {
                value = open_above_zero::<N>(value, value);
            }
            if comptime!(is_limited) {
                let six = Vector::new(6.0f32);
                value = select_many(value.greater_than(&six), six, value);
            }
            output[at] = Vector::cast_from(value);
            row += CUBE_DIM_Y as usize;
        }
    }
}

/// Returns `value` unless `gate <= 0`, so NaN passes.
#[cube]
fn open_above_zero<N: Size>(gate: Vector<f32, N>, value: Vector<f32, N>) -> Vector<f32, N> {
    let zero = Vector::new(0.0f32);
    select_many(gate.less_equal(&zero), zero, value)
}

/// Computes `dy`, the gradient of the rectifier's input, and two sums over each block,
/// `[blocks, C]`: of `dy`, and of `dy` times the deviation of the input from the mean.
#[cube(launch, address_type = "dynamic")]
pub(super) fn block_gradient_sums<E: Float, N: Size>(
    input: &[Vector<E, N>],
    mean: &[Vector<f32, N>],
    output: &[Vector<E, N>],
    dy: &[Vector<E, N>],
    gated: &mut [Vector<E, N>],
    plain: &mut [Vector<f32, N>],
    with_centred: &mut [Vector<f32, N>],
    table: &Table,
    #[comptime] is_rectified: bool,
    #[comptime] is_limited: bool,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let column = this_column();
    let end = last_row(table);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut sum_with_centred = Vector::<f32, N>::new(0.0f32);
    if column < table.columns {
        let mean = mean[column];
        let mut row = first_row(table);
        while row < end {
            let at = row * table.columns + column;
            let mut gradient = Vector::<f32, N>::cast_from(dy[at]);
            if comptime!(is_rectified) {
                let made = Vector::<f32, N>::cast_from(output[at]);
                gradient = open_above_zero::<N>(made, gradient);
                if comptime!(is_limited) {
                    gradient = open_above_zero::<N>(Vector::new(6.0f32) - made, gradient);
                }
                gated[at] = Vector::cast_from(gradient);
            }
            sum += gradient;
            sum_with_centred += gradient * (Vector::<f32, N>::cast_from(input[at]) - mean);
            row += CUBE_DIM_Y as usize;
        }
    }

    let (sum, sum_with_centred) = add_lanes::<N>(sum, sum_with_centred, units);
    if UNIT_POS_Y == 0 && column < table.columns {
        let to = CUBE_POS_Y as usize * table.columns + column;
        plain[to] = sum;
        with_centred[to] = sum_with_centred;
    }
}

/// Adds the sums of all blocks: `[C]` sums of the gradient, and of the gradient times the
/// normalised input.
#[cube(launch, address_type = "dynamic")]
pub(super) fn whole_gradient_sums<N: Size>(
    block_sums: &[Vector<f32, N>],
    block_sums_with_centred: &[Vector<f32, N>],
    variance: &[Vector<f32, N>],
    plain: &mut [Vector<f32, N>],
    with_normalised: &mut [Vector<f32, N>],
    table: &Table,
    blocks: usize,
    epsilon: f32,
    #[comptime] units: usize,
) {
    let column = this_column();
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut sum_with_centred = Vector::<f32, N>::new(0.0f32);
    if column < table.columns {
        let mut block = UNIT_POS_Y as usize;
        while block < blocks {
            sum += block_sums[block * table.columns + column];
            sum_with_centred += block_sums_with_centred[block * table.columns + column];
            block += CUBE_DIM_Y as usize;
        }
    }

    let (sum, sum_with_centred) = add_lanes::<N>(sum, sum_with_centred, units);
    if UNIT_POS_Y == 0 && column < table.columns {
        plain[column] = sum;
        with_normalised[column] = sum_with_centred * inverse_std::<N>(variance[column], epsilon);
    }
}

/// Sums two values over all lanes, as a tree; only the first lane receives the sums.
#[cube]
pub(super) fn add_lanes<N: Size>(
    left: Vector<f32, N>,
    right: Vector<f32, N>,
    #[comptime] units: usize,
) -> (Vector<f32, N>, Vector<f32, N>) {
    let unit = UNIT_POS as usize;
    let mut lefts = Shared::<[Vector<f32, N>]>::new_slice(units);
    let mut rights = Shared::<[Vector<f32, N>]>::new_slice(units);
    lefts[unit] = left;
    rights[unit] = right;
    let mut lanes = CUBE_DIM_Y;
    sync_cube();
    while lanes > 1 {
        lanes /= 2;
        if UNIT_POS_Y < lanes {
            let other = unit + (lanes * CUBE_DIM_X) as usize;
            let added = lefts[other];
            lefts[unit] += added;
            let added = rights[other];
            rights[unit] += added;
        }
        sync_cube();
    }
    (lefts[unit], rights[unit])
}

/// Computes `gamma / std * (dy - plain / n - xhat * with_normalised / n)` in the input's type;
/// `share` is 1 / n.
#[cube(launch, address_type = "dynamic")]
pub(super) fn input_gradients<E: Float, N: Size>(
    input: &[Vector<E, N>],
    mean: &[Vector<f32, N>],
    variance: &[Vector<f32, N>],
    gamma: &[Vector<f32, N>],
    plain: &[Vector<f32, N>],
    with_normalised: &[Vector<f32, N>],
    dy: &[Vector<E, N>],
    dx: &mut [Vector<E, N>],
    table: &Table,
    epsilon: f32,
    share: f32,
    #[define(E)] _element: ElemType,
) {
    let column = this_column();
    let end = last_row(table);
    if column < table.columns {
        let mean = mean[column];
        let inverse_std = inverse_std::<N>(variance[column], epsilon);
        let scale = gamma[column] * inverse_std;
        let shift = plain[column] * Vector::new(share);
        let slope = with_normalised[column] * Vector::new(share) * inverse_std;
        let mut row = first_row(table);
        while row < end {
            let at = row * table.columns + column;
            let centred = Vector::<f32, N>::cast_from(input[at]) - mean;
            let value = (Vector::<f32, N>::cast_from(dy[at]) - shift - centred * slope) * scale;
            dx[at] = Vector::cast_from(value);
            row += CUBE_DIM_Y as usize;
        }
    }
}
