package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func liveConfig(age time.Duration) *sarama.Config {
	sarama.Logger = log.Default()
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Metadata.RefreshFrequency = age
	return config
}

// Sends what its standard input says, with an idempotent producer.
func feed(bootstrap []string, topic string, age time.Duration) {
	config := liveConfig(age)
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Net.MaxOpenRequests = 1
	client, err := sarama.NewClient(bootstrap, config)
	check(err)
	producer, err := sarama.NewAsyncProducerFromClient(client)
	check(err)
	var waiting sync.WaitGroup
	go func() {
		for range producer.Successes() {
			waiting.Done()
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			log.Fatal(failure)
		}
	}()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		switch line := input.Text(); line {
		case "flush":
			waiting.Wait()
			fmt.Println("flushed")
		case "partitions":
			partitions, err := client.Partitions(topic)
			check(err)
			fmt.Println(len(partitions))
		default:
			key, value, _ := strings.Cut(line, " ")
			waiting.Add(1)
			producer.Input() <- &sarama.ProducerMessage{
				Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
			}
		}
	}
	waiting.Wait()
	check(producer.Close())
	check(client.Close())
}

type printer struct{}

func (printer) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (printer) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (printer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		fmt.Println(string(message.Value))
		session.MarkMessage(message, "")
	}
	return nil
}

// Prints what it reads as a member of a group, until its standard input has a line or ends.
func follow(bootstrap []string, topic, name string, age time.Duration) {
	config := liveConfig(age)
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	group, err := sarama.NewConsumerGroup(bootstrap, name, config)
	check(err)
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, printer{}); err != nil {
			log.Print(err)
		}
	}
	check(group.Close())
}
