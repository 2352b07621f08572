//! The cut of a table.

use super::*;

#[test]
fn every_layer_of_a_network_has_cubes_for_a_whole_gpu_and_lanes_worth_a_cube() {
    for (rows, channels) in [
        (128 * 1024, 16),
        (128 * 256, 32),
        (128 * 64, 64),
        (96 * 49, 512),
        (128 * 12_544, 64),
    ] {
        let plan = TablePlan::new(rows, channels);
        assert!(
            plan.units() > UNITS / 2 && plan.units() <= UNITS,
            "{plan:?}"
        );
        assert!(
            plan.tiles() as usize * plan.blocks >= 128
                && plan.tiles() as usize * plan.blocks <= MOST_CUBES,
            "{plan:?}"
        );
        assert!(plan.rows_of_block >= plan.lanes * FEWEST_ROWS, "{plan:?}");
    }
    for (rows, channels) in [(1, 1), (1, 16), (45, 3), (9973, 100), (343, 132)] {
        let plan = TablePlan::new(rows, channels);
        let covered = plan.blocks * plan.rows_of_block;
        assert!(
            covered >= rows && covered - rows < plan.rows_of_block,
            "{plan:?}"
        );
        assert!(
            plan.tiles() as usize * plan.width * plan.vector >= channels
                && plan.lanes.is_power_of_two(),
            "{plan:?}"
        );
    }
}
