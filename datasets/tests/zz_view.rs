//! temporary
#[test]
fn view() {
    let t = std::time::Instant::now();
    let s = datasets::shapes::open(&datasets::ShapesConfig::default()).unwrap();
    println!("open {:?}", t.elapsed());
    let t = std::time::Instant::now();
    println!("{} {:?}", s.train.checksum(), t.elapsed());
    let mut sheet = image::RgbImage::new(20 * 33 * 2, 10 * 33 * 2);
    let mut px = vec![0; 3072];
    let mut sum=[0f64;3]; let mut sq=[0f64;3];
    for i in 0..10000 { s.train.read_image(i,&mut px).unwrap(); for p in px.chunks(3){for c in 0..3{let v=p[c] as f64/255.0; sum[c]+=v; sq[c]+=v*v;}} }
    let n=10000.0*1024.0; println!("mean {:?} std {:?}", sum.map(|x|x/n), [0,1,2].map(|c|(sq[c]/n-(sum[c]/n).powi(2)).sqrt()));
    for i in 0..200 { s.train.read_image(i,&mut px).unwrap();
        for y in 0..64 { for x in 0..64 { let o=((y/2)*32+x/2)*3; sheet.put_pixel((i as u32/10)*66+x as u32,(i as u32%10)*66+y as u32,image::Rgb([px[o],px[o+1],px[o+2]])); } } }
    sheet.save("/tmp/shapes.png").unwrap();
}
