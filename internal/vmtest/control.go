package vmtest

import (
	"encoding/json"
	"errors"
	"fmt"
)

// send gives a command to the running QEMU. Its answer is not waited for.
func (q *qmpLog) send(command string, arguments any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn == nil {
		return errors.New("qemu is not connected")
	}
	m := map[string]any{"execute": command}
	if arguments != nil {
		m["arguments"] = arguments
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = q.conn.Write(append(b, '\n'))
	return err
}

// Reset presses the reset button.
func (n *Node) Reset() error { return n.command("system_reset") }

// Shutdown presses the power button for a moment: the guest may act on it.
func (n *Node) Shutdown() error { return n.command("system_powerdown") }

func (n *Node) command(command string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return fmt.Errorf("virtual node %q is off", n.Name)
	}
	return n.qmp.send(command, nil)
}

// NetworkOnce makes the next start of the node try the network before its
// disk, or takes that back. Later resets try the disk first again.
func (n *Node) NetworkOnce(is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.networkOnce = is
}

// endOverride gives the network its usual place: the firmware has read the
// order of this start, the next reset reads it anew.
func (n *Node) endOverride() error {
	if !n.networkOnce {
		return nil
	}
	n.networkOnce = false
	return n.qmp.send("qom-set", map[string]any{"path": "/machine/peripheral/nic", "property": "bootindex", "value": 2})
}

// Freeze stops the machine between two instructions: it runs no more, and
// its watchdogs neither, until its power is cycled.
func (n *Node) Freeze() error { return n.command("stop") }
