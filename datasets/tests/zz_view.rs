//! temporary
#[test]
fn view() {
    let s = datasets::shapes::open(&datasets::ShapesConfig::default()).unwrap();
    let mut sheet = image::RgbImage::new(20 * 33 * 2, 10 * 33 * 2);
    let mut px = vec![0; 3072];
    for i in 0..200 {
        s.train.read_image(i, &mut px).unwrap();
        for y in 0..64 {
            for x in 0..64 {
                let o = ((y / 2) * 32 + x / 2) * 3;
                sheet.put_pixel(
                    (i as u32 / 10) * 66 + x as u32,
                    (i as u32 % 10) * 66 + y as u32,
                    image::Rgb([px[o], px[o + 1], px[o + 2]]),
                );
            }
        }
    }
    sheet.save("/tmp/shapes.png").unwrap();
}
