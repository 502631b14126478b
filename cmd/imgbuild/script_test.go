package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"imgbuild": main})
}

// TestScripts runs the sessions in testdata/script. Those that build images
// need root and the package archive; the store they share is kept in
// TURNOUT_TEST_STORE if that is set.
func TestScripts(t *testing.T) {
	bin := t.TempDir()
	store := os.Getenv("TURNOUT_TEST_STORE")
	if store == "" {
		store = t.TempDir()
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(bin, "nodeagent"), "../nodeagent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building nodeagent: %v\n%s", err, out)
	}
	recipes, err := filepath.Abs("../../recipes")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "builder":
				return canBuild(t), nil
			}
			return false, nil
		},
		Setup: func(e *testscript.Env) error {
			e.Setenv("NODEAGENT", filepath.Join(bin, "nodeagent"))
			e.Setenv("STORE", store)
			e.Setenv("RECIPES", recipes)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": cmdStatus, "flip": cmdFlip, "sametree": cmdSameTree,
		},
	})
}

// canBuild tells whether images can be built here. In CI they must be.
func canBuild(t *testing.T) bool {
	if os.Getenv("CI") != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Log("not root: scripts that build images are skipped")
		return false
	}
	for _, tool := range []string{"apt-get", "mksquashfs", "unsquashfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("%v: scripts that build images are skipped", err)
			return false
		}
	}
	return true
}

// cmdStatus runs a command and checks its exit status: status N imgbuild …
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command …")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if exit, ok := err.(*exec.ExitError); ok {
		code = exit.ProcessState.String()[len("exit status "):]
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if code != args[0] {
		ts.Fatalf("exit status %s, want %s", code, args[0])
	}
}

// cmdFlip changes one byte in the middle of the largest file below a folder,
// or of the one file that is named: flip PATH.
func cmdFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: flip PATH")
	}
	var name string
	var size int64
	ts.Check(filepath.Walk(ts.MkAbs(args[0]), func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() && fi.Size() > size {
			name, size = p, fi.Size()
		}
		return err
	}))
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	ts.Check(err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, size/2)
	ts.Check(err)
	b[0] ^= 1
	_, err = f.WriteAt(b, size/2)
	ts.Check(err)
	ts.Check(f.Close())
}

// cmdSameTree compares two folders byte for byte: sametree A B.
func cmdSameTree(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: sametree A B")
	}
	out, err := exec.CommandContext(context.Background(), "diff", "-r", ts.MkAbs(args[0]), ts.MkAbs(args[1])).CombinedOutput()
	if (err == nil) == neg {
		ts.Fatalf("the folders differ: %v; want that they do: %v\n%s", err != nil, neg, out)
	}
}
