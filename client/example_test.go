package client_test

import (
	"context"
	"fmt"
	"os"

	"github.com/turnout-project/turnout/client"
)

// Start a rollout and say how it stands.
func Example() {
	ca, err := os.ReadFile("ca.pem")
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New("https://10.77.0.1:8443", ca, os.Getenv("TURNOUT_TOKEN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	policy := client.Policy{FailureBudget: client.Amount{Percent: 1}, MaxUnavailable: client.Amount{Percent: 10}}
	for _, text := range []string{"canary", "labels:gpu=h100:10%", "rack"} {
		stage, err := client.ParseStage(text)
		if err != nil {
			fmt.Println(err)
			return
		}
		policy.Stages = append(policy.Stages, stage)
	}
	r, err := c.StartRollout(context.Background(), client.RolloutRequest{Image: "rack-base 1.1.0", Policy: policy})
	if client.StatusOf(err) == 409 {
		fmt.Println("refused:", err) // as things stand: the error says what to do
		return
	}
	if err == nil {
		fmt.Println(r.ID, r.State)
	}
}
