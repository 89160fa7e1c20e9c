// Reads and writes records with IBM/sarama. See other_clients.py for its arguments.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

type handler struct {
	left int
	done context.CancelFunc
}

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if h.left == 0 {
			return nil
		}
		fmt.Println(string(message.Value))
		session.MarkMessage(message, "")
		session.Commit()
		h.left--
		if h.left == 0 {
			h.done()
			return nil
		}
	}
	return nil
}

func main() {
	bootstrap, topic, mode, name := []string{os.Args[1]}, os.Args[2], os.Args[3], os.Args[4]
	switch mode {
	case "feed":
		feed(bootstrap, topic, milliseconds(name))
		return
	case "follow":
		follow(bootstrap, topic, name, milliseconds(os.Args[5]))
		return
	}
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	if mode == "group" {
		group, err := sarama.NewConsumerGroup(bootstrap, name, config)
		check(err)
		ctx, cancel := context.WithCancel(context.Background())
		reading := &handler{left: count, done: cancel}
		for ctx.Err() == nil {
			check(group.Consume(ctx, []string{topic}, reading))
		}
		check(group.Close())
		return
	}
	since, err := strconv.ParseInt(name, 10, 64)
	check(err)
	client, err := sarama.NewClient(bootstrap, config)
	check(err)
	offset, err := client.GetOffset(topic, 0, since)
	check(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, offset)
	check(err)
	for ; count > 0; count-- {
		message := <-partition.Messages()
		fmt.Println(string(message.Value))
	}
	check(partition.Close())
	check(consumer.Close())
	check(client.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	check(err)
	return time.Duration(number) * time.Millisecond
}
