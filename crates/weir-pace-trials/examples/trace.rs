use weir_pace_trials::{judge, ours::Ours, real, scenarios, unseen, world};
struct T(Ours, String, f64);
impl world::Pacer for T {
    fn next_start(&mut self, now: f64, f: u32) -> Option<f64> {
        self.0.next_start(now, f)
    }
    fn sent(&mut self, now: f64, f: u32) -> u32 {
        self.0.sent(now, f)
    }
    fn learn(&mut self, now: f64, a: &[world::Answer]) {
        self.0.learn(now, a);
        let s = self.0.status(now);
        if s != self.1 && now > self.2 {
            println!("{now:8.2} {s}");
            self.1 = s;
        }
    }
    fn lose(&mut self, now: f64) {
        self.0.lose(now)
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let all = scenarios::all().into_iter().chain(unseen::all()).chain(real::all().into_iter().map(|c| c.scenario));
    let s = all.into_iter().find(|s| s.name.contains(&a[1])).unwrap();
    let mut r = s.receiver.clone();
    let mut t = T(Ours::default(), String::new(), a.get(3).map_or(0.0, |v| v.parse().unwrap()));
    let sent = world::play(&mut r, &mut t, &s.course, a[2].parse().unwrap());
    let f = judge::judge(&sent, &r, &s.phases, s.settles, s.course.seconds);
    println!("{f:?}");
}
