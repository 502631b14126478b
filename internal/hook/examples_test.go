package hook

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/rollout"
)

// fakes puts programs into the PATH that write down how they were called,
// and answer by the rules of a case: "PREFIX OF CALL => OUTPUT", or
// "=> !OUTPUT" to fail with it.
func fakes(t *testing.T, rules []string, names ...string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	text := "#!/bin/sh\nc=\"${0##*/} $*\"\nprintf '%s\\n' \"$c\" >>" + log + "\ncase $c in\n"
	for _, r := range rules {
		call, out, _ := strings.Cut(r, " => ")
		end := "exit 0"
		if strings.HasPrefix(out, "!") {
			out, end = out[1:], "exit 1"
		}
		text += "'" + call + "'*) printf '%s\\n' '" + out + "'; " + end + " ;;\n"
	}
	text += "esac\n"
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

type exampleCase struct {
	name    string
	undrain bool
	left    time.Duration // until the deadline
	rules   []string
	done    bool
	note    string
	err     string
	calls   []string // that change something
}

func runExamples(t *testing.T, file string, args, names []string, changes func(string) bool, cases []exampleCase) {
	path, err := filepath.Abs("../../docs/examples/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			calls := fakes(t, c.rules, names...)
			s := Set{"h": {Exec: append([]string{path}, args...)}}
			do := s.Drain
			if c.undrain {
				do = s.Undrain
			}
			done, note, err := do(context.Background(), rollout.DrainCall{Hook: "h", Node: "n1", Rollout: "r7", Deadline: time.Now().Add(c.left)})
			if done != c.done || note != c.note || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %q, %v; want %v, %q, %q", done, note, err, c.done, c.note, c.err)
			}
			var got []string
			for _, k := range calls() {
				if changes(k) {
					got = append(got, k)
				}
			}
			if d := cmp.Diff(c.calls, got); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

func TestSlurmExample(t *testing.T) {
	show := func(state, reason string) string {
		if reason != "" {
			reason = " Reason=" + reason
		}
		return "scontrol show node n1 --oneliner => NodeName=n1 Arch=x86_64 CPUAlloc=0 State=" + state + " ThreadsPerCore=1 Partitions=gpu" + reason
	}
	two := "squeue --noheader --nodelist=n1 => 11\n12"
	drain, resume := "scontrol update NodeName=n1 State=DRAIN Reason=turnout r7", "scontrol update NodeName=n1 State=RESUME"
	const mine = "turnout r7 [slurm@2026-03-01T12:00:00]"
	runExamples(t, "slurm-drain", []string{"--signal", "USR1", "--grace", "600"}, []string{"scontrol", "squeue", "scancel"},
		func(c string) bool { return strings.HasPrefix(c, "scontrol update") || strings.HasPrefix(c, "scancel") },
		[]exampleCase{
			{name: "idle", left: time.Hour, rules: []string{show("IDLE", "")}, done: true, note: "no jobs", calls: []string{drain}},
			{name: "busy", left: time.Hour, rules: []string{show("MIXED", ""), two}, note: "jobs run: 11 12", calls: []string{drain}},
			{name: "still busy", left: time.Hour, rules: []string{show("MIXED+DRAIN", mine), two}, note: "jobs run: 11 12"},
			{name: "time to write a checkpoint", left: 5 * time.Minute, rules: []string{show("MIXED+DRAIN", mine), two}, note: "jobs run: 11 12",
				calls: []string{"scancel --batch --signal=USR1 11", "scancel --batch --signal=USR1 12", "scontrol update NodeName=n1 Reason=turnout r7, jobs told USR1"}},
			{name: "told once", left: 5 * time.Minute, rules: []string{show("MIXED+DRAIN", "turnout r7, jobs told USR1 [slurm@x]"), two}, note: "jobs run: 11 12"},
			{name: "a person's drain", left: time.Minute, rules: []string{show("IDLE+DRAIN", "bad fan [root@x]")}, done: true, note: "no jobs"},
			{name: "no controller", left: time.Hour, rules: []string{"scontrol show => !slurm_load_node error: Unable to contact slurm controller"}, err: "exit status 1"},
			{name: "give back", undrain: true, rules: []string{show("IDLE+DRAIN", mine)}, done: true, calls: []string{resume}},
			{name: "give back, still booting", undrain: true, rules: []string{show("IDLE*+DRAIN", mine)}, note: "slurmd is not back: IDLE*+DRAIN"},
			{name: "give back what is a person's", undrain: true, rules: []string{show("IDLE+DRAIN", "bad fan")}, done: true, note: "drained by somebody else: bad fan"},
			{name: "give back twice", undrain: true, rules: []string{show("IDLE", "")}, done: true, note: "not drained"},
		})
}

func TestKubernetesExample(t *testing.T) {
	const (
		cordoned = "kubectl get node n1 -o jsonpath={.spec.unschedulable} => true"
		ours     = `kubectl get node n1 -o jsonpath={.metadata.annotations => turnout r7`
		ready    = "kubectl get node n1 -o jsonpath={.status.conditions => True"
		jobs     = "kubectl get pods --all-namespaces --field-selector spec.nodeName=n1,status.phase=Running => ml/train-0 "
		mark     = "kubectl annotate node n1 turnout.dev/drained-by=turnout r7 --overwrite"
		drain    = "kubectl drain n1 --ignore-daemonsets --delete-emptydir-data --timeout=40s"
	)
	runExamples(t, "kubernetes-drain", []string{"--grace", "600"}, []string{"kubectl"},
		func(c string) bool { return !strings.HasPrefix(c, "kubectl get ") },
		[]exampleCase{
			{name: "idle", left: time.Hour, done: true, note: "no pods", calls: []string{mark, "kubectl cordon n1", drain}},
			{name: "a job runs", left: time.Hour, rules: []string{jobs}, note: "pods of jobs run: ml/train-0", calls: []string{mark, "kubectl cordon n1"}},
			{name: "little time is left", left: 5 * time.Minute, rules: []string{cordoned, ours, jobs}, done: true, note: "no pods", calls: []string{drain}},
			{name: "a disruption budget", left: time.Hour, rules: []string{cordoned, ours, "kubectl drain => !error when evicting pods: Cannot evict pod"},
				note: "not all pods could be evicted yet: error when evicting pods: Cannot evict pod", calls: []string{drain}},
			{name: "a person's cordon", left: time.Hour, rules: []string{cordoned}, done: true, note: "no pods", calls: []string{drain}},
			{name: "no API server", left: time.Hour, rules: []string{"kubectl get => !The connection to the server was refused"}, err: "exit status 1"},
			{name: "give back", undrain: true, rules: []string{cordoned, ours, ready}, done: true,
				calls: []string{"kubectl uncordon n1", "kubectl annotate node n1 turnout.dev/drained-by-"}},
			{name: "give back, not ready", undrain: true, rules: []string{cordoned, ours}, note: "the node is not Ready"},
			{name: "give back what is a person's", undrain: true, rules: []string{cordoned}, done: true, note: "not cordoned by turnout"},
		})
}
