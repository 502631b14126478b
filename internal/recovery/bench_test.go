package recovery

import (
	"fmt"
	"testing"
)

// BenchmarkDecide is one look at 10,000 nodes, of which one in fifty is in
// trouble.
func BenchmarkDecide(b *testing.B) {
	l := newLab(10_000)
	for i, n := range l.in.Nodes {
		n.Name, n.Pool = fmt.Sprintf("r%03d-n%02d", i/40, i%40), fmt.Sprint("p", i%10)
		n.Reported.Metrics = map[string]float64{}
		for g := range 8 {
			n.Reported.Metrics[fmt.Sprintf("gpu.%d.temperature_celsius", g)] = float64(50 + i%7)
			n.Reported.Metrics[fmt.Sprintf("gpu.%d.clock_mhz", g)] = 1500
		}
		if i%50 == 0 {
			n.Reported.Health = failing("software")
		}
	}
	s, _, _ := Decide(l.in)
	l.in.State = s
	for b.Loop() {
		Decide(l.in)
	}
}
